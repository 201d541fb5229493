"""The effect of each option of SPICE on a step."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scope_jax.config import CardError
from scope_jax.games import spice
from scope_jax.learner.types import Episode
from scope_jax.play.game import play_step
from scope_jax.play.tools import BASE, Agent
from tests.games.harness import ScriptedTools, TurnContext, episodes_of
from tests.games.spice_world import Plan, card, chosen, open_task, options, world

HALF = Plan(answers={"How many": [r"\boxed{7}", "", "", ""]})  # every task: p = 1/4


def played(cfg: Any, plan: Any = HALF, **changes: Any) -> tuple[list[Any], dict[str, float], Any]:
    tools = world(plan, **changes)
    episodes, _, metrics = play_step(spice.GAME, cfg, tools, {"drawn": 0}, 0)
    return episodes, metrics, tools


@pytest.mark.parametrize(
    ("name", "gain"), [("variance", 0.8225775623), ("absolute-zero", 0.75), ("threshold", 1.0), ("r-zero", 0.5)]
)
def test_challenger_reward(name: str, gain: float):
    episodes, _, _ = played(card(challenger_reward=name))
    assert [e.reward for e in episodes_of(episodes, "challenger")] == pytest.approx([gain] * 12, abs=1e-9)


def test_the_width_of_a_reward_that_has_none_is_refused():
    with pytest.raises(CardError, match=r'challenger_reward = "threshold" has none: remove it'):
        card(challenger_reward="threshold", reward_width=0.02)


def test_reward_width_and_invalid_reward():
    plan = Plan({("Aare", 0): ("no", "")}, HALF.answers)
    episodes, _, _ = played(card(reward_width=0.00390625 / 2, invalid_reward=-2), plan)  # exp(−1)
    assert [e.reward for e in episodes[:4]] == pytest.approx([-2.0, *[0.3678794412] * 3], abs=1e-9)


def test_multiple_choice_only_has_one_stage():
    def script(ctx: TurnContext) -> str:
        return r"\boxed{B}" if ctx.role == "reasoner" else options("Which?")

    episodes, metrics, tools = played(card(formats="multiple-choice"), script)
    assert all(name.split()[1] == "task" for role, name, _ in tools.asked if role == "challenger")
    assert metrics["kinds/multiple_choice"] == 1.0 and metrics["reasoner/reward"] == 1.0
    assert [len(e.datums) for e in episodes_of(episodes, "challenger")] == [1] * 12
    assert "On Aare." in tools.prompts["challenger", "0 task 0"]


def test_free_form_only():
    plan = Plan({("Aare", 0): (chosen(None), options("Which?"))}, HALF.answers)
    episodes, metrics, tools = played(card(formats="free-form", answer_types=["integer", "boolean"]), plan)
    assert episodes[0].text["rejected"] == "format_flags" and metrics["kinds/multiple_choice"] == 0.0
    prompt = tools.prompts["challenger", "0 format 0"]
    assert "ultiple choice" not in prompt and '"Integer" or "Boolean"' in prompt


def test_the_prompt_lists_answer_types_and_the_word_limit():
    plan = Plan({("Aare", 0): (chosen("String"), open_task("Who?", "a b c", "String"))})
    episodes, _, tools = played(card(max_answer_words=2), plan)
    assert episodes[0].text["rejected"] == "answer_form"
    assert "at most 2 words" in tools.prompts["challenger", "0 task 0"]
    assert "type Integer: a whole number" in tools.prompts["challenger", "0 task 1"]


@pytest.mark.parametrize(("stages", "rows"), [("both", [1, 2]), ("format", [1, 1]), ("task", [0, 1])])
def test_which_stage_is_trained(stages: str, rows: list[int]):
    plan = Plan({("Aare", 0): ("no", "")}, HALF.answers)
    episodes, _, tools = played(card(train_stages=stages), plan)
    assert [len(e.datums) for e in episodes[:2]] == rows
    assert all(e.trained for e in episodes[:2])  # its reward counts in the group even without a training row
    last = "".join(map(chr, episodes[1].datums[-1].ids_T))
    name = "0 format 0" if stages == "format" else "0 task 1"
    assert last.startswith(tools.prompts["challenger", name])


def test_attempts_go_on_until_enough_are_valid():
    only_the_third = Plan({("Aare", n): ("no", "") for n in (0, 1, 3, 4)}, HALF.answers)
    for wanted, attempts in ((1, 6), (2, 6), (3, 11), (9, 11)):  # rounds of 2, 4 and the 5 that are left
        cfg = card(attempts_per_round=2, max_attempts=11, valid_wanted=wanted, train_table={"batch_size": 1})
        _, metrics, _ = played(cfg, only_the_third)
        assert metrics["challenger/attempts"] == attempts, wanted


def asked_of_challenger(tools: Any, stage: str) -> list[tuple[str, int]]:
    return [(name, samples) for role, name, samples in tools.asked if role == "challenger" and stage in name]


def test_rounds_double_and_reach_1024_attempts_in_eight():
    hopeless = Plan({("Aare", n): ("no", "") for n in range(1024)})
    cfg = card(attempts_per_round=8, max_attempts=1024, train_table={"batch_size": 1})
    episodes, metrics, tools = played(cfg, hopeless)
    rounds = [8, 16, 32, 64, 128, 256, 512, 8]
    assert [samples for _, samples in asked_of_challenger(tools, "format")] == rounds
    assert metrics["challenger/attempts"] == 1024 and len(episodes) == 4
    assert tools.told == [
        "1 of 1 documents lacked valid tasks after 8 attempts each and took 1024.0 of at most 1024: 0 of 1024 are "
        "valid (100% format_no_json)."
    ]


def test_a_documents_attempts_do_not_depend_on_the_rounds_of_others():
    """Bern has a task in the first round; Aare needs three, alone or not."""
    late = Plan({("Aare", n): ("no", "") for n in range(6)}, HALF.answers)
    alone, _, _ = played(card(attempts_per_round=2, max_attempts=14, train_table={"batch_size": 1}), late)
    both, _, tools = played(card(attempts_per_round=2, max_attempts=14, train_table={"batch_size": 2}), late)
    assert asked_of_challenger(tools, "format") == [
        ("0 format 0", 2),
        ("1 format 0", 2),
        ("0 format 2", 4),
        ("0 format 6", 8),
    ]

    def of_aare(episodes: list[Episode]) -> list[tuple[Any, ...]]:
        own = [e for e in episodes_of(episodes, "challenger") if e.text["document"] == "aare"]
        return [(e.text["attempt"], e.reward, e.text["turns"]) for e in own]

    assert of_aare(alone) == of_aare(both) and len(of_aare(both)) == 4


@pytest.mark.parametrize("endpoint", [None, {"url": "http://127.0.0.1:1/v1", "model": "strong"}])
def test_an_untrained_challenger_samples_no_attempt_that_cannot_be_used(endpoint: dict[str, str] | None):
    """One valid task of a document is used: one attempt first, then two, four …, whatever the card says."""
    said = iter(["no", chosen("Integer"), chosen("Integer"), *[open_task("How many?", 7)] * 2])
    changes = {"judge_reply": lambda message: next(said), "known_judges": ("challenger",)} if endpoint else {}
    plan = Plan({("Aare", 0): ("no", "")}, HALF.answers)
    cfg = card(
        train="reasoner",
        challenger={"endpoint": endpoint},
        attempts_per_round=8,
        max_attempts=64,
        valid_wanted=4,
        train_table={"batch_size": 1},
    )
    episodes, metrics, tools = played(cfg, plan, **changes)
    assert metrics["challenger/attempts"] == 3
    if endpoint is None:
        assert asked_of_challenger(tools, "format") == [("0 format 0", 1), ("0 format 1", 2)]
    assert len(episodes_of(episodes, "reasoner")) == 4


def test_an_untrained_reasoner_answers_no_task_twice():
    episodes, metrics, tools = played(card(train="challenger", reasoner_rollouts="fresh"))
    assert not any(name.endswith("again") for _, name, _ in tools.asked)
    assert not any(e.trained for e in episodes_of(episodes, "reasoner")) and metrics["reasoner/reward"] == 0.25


def test_fresh_answers_for_the_reasoner():
    def script(ctx: TurnContext) -> str:
        if ctx.role == "reasoner":
            return r"\boxed{7}" if ctx.name.endswith("again") else "no idea"
        return HALF(ctx)

    episodes, metrics, tools = played(card(reasoner_rollouts="fresh"), script)
    answers = episodes_of(episodes, "reasoner")
    assert {e.trained: e.reward for e in answers} == {True: 1.0, False: 0.0}
    assert len([e for e in answers if e.trained]) == 12 and len([e for e in answers if not e.trained]) == 48
    assert metrics["reasoner/reward"] == 1.0 and metrics["challenger/pass_rate"] == 0.0
    assert sum(name.endswith("again") for _, name, _ in tools.asked) == 3


def test_the_weight_of_the_challenger_in_the_update():
    (update,) = spice.GAME.updates(card(challenger_weight=0.25))
    assert [(share.role, share.weight) for share in update.roles] == [("challenger", 0.25), ("reasoner", 1.0)]
    (update,) = spice.GAME.updates(card(train="reasoner"))
    assert [(share.role, share.weight) for share in update.roles] == [("reasoner", 1.0)]
    with pytest.raises(CardError, match='train = "reasoner" trains one; remove it'):
        card(train="reasoner", challenger_weight=0.5)


@pytest.mark.parametrize("train", ["challenger", "reasoner"])
def test_training_one_role(train: str):
    cfg = card(train=train)
    episodes, _, _ = played(cfg)
    assert {e.role for e in episodes if e.trained} == {train}
    (update,) = spice.GAME.updates(cfg)
    assert [share.role for share in update.roles] == [train]


@pytest.mark.parametrize("rollouts", ["reuse", "fresh"])
def test_a_fixed_challengers_tasks_are_attempted_once_per_document(rollouts: str):
    episodes, _, tools = played(card(train="reasoner", reasoner_rollouts=rollouts))
    assert len(episodes_of(episodes, "challenger")) == 3 and len(episodes_of(episodes, "reasoner")) == 12
    assert [samples for role, _, samples in tools.asked if role == "reasoner"] == [4, 4, 4]


def test_the_base_model_as_challenger():
    cfg = card(train="reasoner", challenger={"model": "base"})
    assert spice.GAME.uses_base(cfg)
    policies: dict[str, set[str]] = {}
    tools = world(HALF, known_policies=("actor", BASE))
    play = tools.play

    def record_policy(role: str, rollouts: Any, agent: Agent, samples: int = 1) -> Any:
        policies.setdefault(role, set()).add(agent.policy)
        return play(role, rollouts, agent, samples)

    tools.play = record_policy  # type: ignore[method-assign]
    episodes, _, _ = play_step(spice.GAME, cfg, tools, {"drawn": 0}, 0)
    assert policies == {"challenger": {BASE}, "reasoner": {"actor"}}
    assert {(e.role, e.policy, e.trained) for e in episodes} == {
        ("challenger", BASE, False),
        ("reasoner", "actor", True),
    }


def test_an_external_challenger():
    endpoint = {"url": "http://127.0.0.1:1/v1", "model": "strong"}
    cfg = card(train="reasoner", challenger={"endpoint": endpoint, "sampling": {"temperature": 0.7, "max_tokens": 99}})
    (table,) = spice.GAME.judges(cfg).values()
    assert (table.model, table.temperature, table.max_tokens) == ("strong", 0.7, 99) and not spice.GAME.uses_base(cfg)

    def reply(message: str) -> str:
        kind = "<think>a {</think>\n" + chosen("Integer")
        return kind if "suitable_for_mcq" in message else open_task("How many?", 7)

    episodes, metrics, tools = played(cfg, HALF, judge_reply=reply, known_judges=("challenger",))
    assert len(tools.judged) == 3 * 2 and all("On " in message for message in tools.judged)
    assert {role for role, *_ in tools.asked} == {"reasoner"}
    assert [(e.policy, e.trained, e.datums) for e in episodes_of(episodes, "challenger")] == [
        ("challenger", False, ())
    ] * 3
    assert metrics["challenger/valid"] == 1.0 and metrics["reasoner/reward"] == 0.25
    assert "challenger/response_tokens" not in metrics


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": "base"}, "both name the challenger; remove one"),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p is not sent to an endpoint"),
        ({"sampling": {"top_k": 20}}, "sampling.top_k is not sent to an endpoint"),
    ],
)
def test_what_an_external_challenger_would_not_read_is_refused(more: dict[str, Any], words: str):
    with pytest.raises(CardError, match=words):
        card(train="reasoner", challenger={"endpoint": {"url": "http://127.0.0.1:1/v1", "model": "strong"}} | more)


def test_without_a_corpus_no_documents_are_read():
    cfg = card(corpus=False, data={"documents": None})
    assert spice.GAME.rows(cfg) is None
    _, metrics, tools = played(cfg)
    assert tools.taken == [] and metrics["challenger/valid"] == 1.0
    assert len(tools.prompts) > 9
    assert not any(word in prompt for prompt in tools.prompts.values() for word in ("Document:", "{document}", "On "))


def test_one_segment_of_a_long_document_is_used():
    rows = [{"id": "d", "title": "", "text": " ".join(f"word{n:03}" for n in range(100))}]
    shown = set()
    for first in range(12):
        tools = world(lambda ctx: "I pass.", data=rows)
        cfg = card(document_tokens=80, train_table={"batch_size": 1}, max_attempts=2)
        play_step(spice.GAME, cfg, tools, {"drawn": first}, 0)
        prompt = tools.prompts["challenger", "0 format 0"]
        words = re.findall(r"word\d+", prompt)
        assert len(words) == 10 and len(" ".join(words)) <= 80
        shown.add(words[0])
    assert len(shown) > 3 and shown <= {f"word{n:03}" for n in range(0, 100, 10)}


def test_the_time_limit_of_a_comparison_is_set_in_the_card(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def slow(self: Any, comparisons: Any, seconds: float) -> list[str]:
        asked.append((len(comparisons), seconds))
        return ["unreadable" if one.prediction == "(" else "timeout" for one in comparisons]

    monkeypatch.setattr(ScriptedTools, "compare_math", slow)
    plan = Plan(answers={"How many": [r"\boxed{x}", r"\boxed{x}", r"\boxed{(}", r"\boxed{7}"]})
    _, metrics, _ = played(card(math_seconds=0.25), plan)
    assert asked == [(2 * 3, 0.25)]  # equal comparisons are made once
    assert metrics["math/given_up"] == 3 and metrics["math/unreadable"] == 3 and metrics["reasoner/reward"] == 0.25


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"challenger": {"model": "base"}}, "cannot be trained"),
        ({"train_stages": "format", "formats": "multiple-choice"}, "trains nothing"),
        ({"attempts_per_round": 1}, "to at least 2"),
        ({"reasoner": {"samples": 1}}, "reasoner.samples to at least 2"),
        ({"reasoner": {"sampling": {"temperature": 0}}}, "at temperature 0 are all the same"),
        ({"challenger": {"sampling": {"temperature": 0}}}, "at temperature 0 are all the same"),
        ({"answer_types": []}, "at least one"),
        ({"answer_types": ["integer", "integer"]}, "once"),
        ({"document_tokens": 30_000}, "does not fit"),
        ({"data": {"documents": None}}, "data.documents is missing"),
        ({"train_table": {"steps": None}}, "train.steps is missing"),
        ({"train_table": {"keep_iterations": True}}, "no iterations"),
    ],
)
def test_contradictory_cards_are_refused(changes: dict[str, Any], words: str):
    with pytest.raises(CardError, match=words):
        card(**changes)
