"""Tags inside thoughts have no effect: games and rewards are the same as without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scope_jax.games import GAMES, scope
from scope_jax.games.scope import rules
from scope_jax.play import searching
from scope_jax.play.rubrics import score_of
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.types import Completion, Request, SamplingParams
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages
from tests.games import scope_world
from tests.games.harness import (
    ITEMS,
    TAGGED,
    Characters,
    Plan,
    Script,
    TurnContext,
    card,
    episodes_of,
    in_dialect,
    opening,
    plain,
    play_step,
    sampled_turn,
    search_responder,
    world,
)
from tests.games.scope_world import DOCUMENTS, PROTOCOLS
from tests.play.templates import tokenizer_of


class Thinking(Characters):
    """A template that opens the thought itself, like those of QwQ and DeepSeek-R1."""

    def encode_chat(self, messages: Any, add_generation_prompt: bool = True, **options: Any) -> list[int]:
        ids = super().encode_chat(messages, add_generation_prompt, **options)
        return [*ids, *self.encode("<think>\n")] if add_generation_prompt else ids


def thinking(script: Script, quotes: str, opened: bool) -> Script:
    """The script with a thought at the beginning of every turn."""

    def say(ctx: TurnContext) -> str:
        text = script(ctx)
        said = text.partition(parsing.THOUGHT[1])[2] if parsing.THOUGHT[1] in text else text
        return f"{'' if opened else parsing.THOUGHT[0]}well, {quotes}{parsing.THOUGHT[1]}{said}"

    return say


def quotes(name: str) -> str:
    search = searching.written_search("Nile", dialects.load(name))
    tags = "<question>no</question> <answer>no</answer> <task>no</task> <score>0</score> <rubrics></rubrics>"
    return f"{search} {tags} Answer: no. Or <answer>, <think> and {search[:9]}?"


def alike(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "response_" not in name}


def outcomes(episodes: Any) -> list[dict[str, Any]]:
    """Results that must not depend on thoughts."""
    return [
        {name: episode[name] for name in ("role", "group", "reward", "parts", "trained")}
        | {name: episode["text"].get(name) for name in ("question", "answer", "prediction", "task", "rejected")}
        for episode in plain(episodes)
    ]


# ------------------------------------------------------------------------------------------------------------------ SSP
def ssp_played(name: str, mode: str, quoted: str, opened: bool = False, act: bool = False, **options: Any):
    cfg = card(format="think", **options)
    model = cfg.model.model_copy(update={"dialect": name, "turns": mode, "tags_in_thinking": act})
    script = thinking(in_dialect(name, Plan()), quoted, opened)
    codec = Thinking() if opened else Characters()
    tools = world(script, dialect=name, turns=mode, codec=codec, tags_in_thinking=act)
    return tools, *play_step(GAMES["ssp"], cfg.model_copy(update={"model": model}), tools, {"pool": []}, ITEMS, 0)


@pytest.fixture(scope="module")
def ssp_plain():
    """The step in which thoughts quote nothing."""
    return ssp_played("xml", "raw", "")


# In raw turns a template opens only the first thought; the policy opens the others.
@pytest.mark.parametrize(
    ("mode", "opened"),
    [
        *(("raw", False), ("chat", True)),
        *(
            pytest.param(mode, opened, marks=pytest.mark.slow)
            for mode, opened in (("chat-trimmed", True), ("chat", False))
        ),
    ],
)
@pytest.mark.parametrize("name", TAGGED)
def test_tags_in_thoughts_have_no_effect_in_ssp(ssp_plain, name: str, mode: str, opened: bool):
    tools, episodes, _, metrics = ssp_played(name, mode, quotes(name), opened)
    expected = ssp_plain
    assert tools.searched == expected[0].searched and "Nile" in tools.searched  # one of the four plans asks for it
    assert outcomes(episodes) == outcomes(expected[1])
    assert alike(metrics) == alike(expected[3])
    assert {e.reward for e in episodes_of(episodes, "solver")} == {0.0, 1.0} and metrics["verify/passed"] == 1.0


def test_with_tags_in_thinking_as_in_the_released_code():
    """A tag inside a thought ends the turn, and a search in it is run."""
    turns: dict[str, Any] = {"proposer": {"max_turns": 2}, "solver": {"max_turns": 2}}
    tools, episodes, _, metrics = ssp_played("xml", "raw", "<search>Nile</search>", act=True, **turns)
    assert set(tools.searched) == {"Nile"}
    first = episodes_of(episodes, "proposer")[0].text["turns"][0]["text"]
    assert first == "<think>well, <search>Nile</search>"
    assert metrics["proposer/valid"] == 0.0


def test_an_unclosed_thought_has_no_answer():
    def script(ctx: TurnContext) -> str:
        text = Plan()(ctx)
        return text if ctx.role != "solver" else f"<think>Is it {text}"

    tools = world(script)
    _, _, metrics = play_step(GAMES["ssp"], card(format="lenient"), tools, {"pool": []}, ITEMS, 0)
    assert metrics["solver/reward"] == 0.0 and metrics["solver/searches"] == 0.0


# ---------------------------------------------------------------------------------------------------------------- SCOPE
def scope_played(protocol: str, quoted: str, opened: bool = False, **options: Any):
    dialect, _ = PROTOCOLS[protocol]
    plan = thinking(in_dialect(dialect, scope_world.Plan()), quoted, opened)
    codec = Thinking() if opened else Characters()
    tools = scope_world.world(plan, protocol, codec=codec)  # type: ignore[arg-type]
    cfg = scope_world.card(protocol=protocol, **options)
    return tools, *play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), DOCUMENTS, 0)


@pytest.fixture(scope="module")
def scope_plain():
    """The step in which thoughts quote nothing."""
    return scope_played("raw", "")


@pytest.mark.parametrize("stops", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tags_in_thoughts_have_no_effect_in_scope(scope_plain, protocol: str, stops: bool):
    opened = protocol in ("qwen2.5", "olmo3") if stops else protocol == "qwen3"
    tools, episodes, _, metrics = scope_played(
        protocol, quotes(PROTOCOLS[protocol][0]), opened, solver_stops_at_search=stops
    )
    expected = scope_plain
    assert tools.searched == expected[0].searched and "Nile" not in tools.searched
    assert outcomes(episodes) == outcomes(expected[1])
    assert alike(metrics) == alike(expected[3])
    assert metrics["challenger/valid"] == 1.0 and metrics["estimate/think"] == 1.0


def test_a_judge_truncated_in_a_thought_gives_no_verdict():
    def judge(ctx: TurnContext) -> str:
        return "<score>1</score>, I think" if ctx.role == "grader" else scope_world.by_words(ctx)

    plan = thinking(scope_world.Plan(), "", True)

    def script(ctx: TurnContext) -> str:
        return judge(ctx) if ctx.role == "grader" else plan(ctx)

    tools = scope_world.world(script, "qwen2.5", codec=Thinking())  # type: ignore[arg-type]
    cfg = scope_world.card(protocol="qwen2.5")
    metrics = play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), DOCUMENTS, 0)[2]
    assert metrics["judge/grader/malformed"] == metrics["judge/grader/asked"] > 0
    assert score_of("<score>1</score>, I think") is True  # if the prompt opened no thought


@pytest.mark.parametrize(
    ("text", "opened", "answer", "thinks"),
    [
        ("<think>a</think><answer>b</answer>", False, "b", [True, True, True]),
        ("<think><answer>a</answer></think>", False, None, [True, True, True]),
        ("<answer>b</answer><think><answer>a</answer></think>", False, "b", [True, True, False]),
        ("<think>a <answer>b</answer>", False, None, [False, True, True]),
        ("a</think><answer>b</answer>", True, "b", [True, True, True]),
        ("a <answer>b</answer>", True, None, [False, True, True]),
        ("<answer>b</answer>", False, "b", [False, False, False]),
    ],
)
def test_the_answer_and_the_thought_of_a_turn(text: str, opened: bool, answer: str | None, thinks: list[bool]):
    said = rules.parse_turn(scope_world.card(), sampled_turn(text, opened=opened), "answer", False)
    assert rules.answer_of([said]) == answer
    assert [rules.has_thought(said.text, rule) for rule in ("paired", "opening", "starts")] == thinks


# --------------------------------------------------------------------------------------------------- single turns
@pytest.mark.parametrize("name", TAGGED)
def test_searches_in_thoughts_get_no_reply(name: str):
    dialect, asked = dialects.load(name), []

    def search(queries: Any) -> list[str]:
        asked.extend(queries)
        return list(queries)

    def after(text: str, first_only: bool, **options: Any) -> Any:
        fields: dict[str, Any] = {"calls": "first" if first_only else "stop", "malformed": "remind", "reminder": "No."}
        respond = search_responder(search, dialect, **fields)
        return respond((sampled_turn(text, **options),))

    quoted, real = searching.written_search("quoted", dialect), searching.written_search("real", dialect)
    for first_only in (False, True):
        assert after(f"<think>{quoted} or {opening(dialect)}, <answer>x</answer></think> hm", first_only) is None
        assert after(f"<think>{quoted}", first_only) is None
        assert after(f"{quoted}", first_only, opened=True) is None
        answer = after(f"<think>{quoted} <answer>x</answer></think> {real}", first_only)
        assert (answer if isinstance(answer, str) else answer.text) == dialect.observation(["real"])
        assert after(f"{quoted}</think> {opening(dialect)}", first_only, opened=True) == "No."
    cut = after(f"<think>{quoted}</think> {real} <answer>x</answer>", True)
    assert cut.end == len(f"<think>{quoted}</think> {real}")
    assert asked == ["real"] * 3


def test_a_thought_does_not_violate_the_format():
    xml = dialects.load("xml")

    def keeps(text: str, rule: str = "think", opened: bool = False) -> bool:
        completion = Completion((), (sampled_turn(text, opened=opened),), "stop")
        return searching.keeps_format(completion, xml, "answer", rule)

    assert keeps("<think>never write <search> in <answer></answer> </think><answer>a</answer>")
    assert keeps("<think>a</think><answer>a</answer>") and not keeps("<answer>a</answer>")
    assert keeps("a</think><answer>a</answer>", opened=True)
    assert not keeps("a</think><answer>a</answer>", "well-formed")  # a closing mark without an opening one
    assert not keeps("<think>a</think></think><answer>a</answer>", "well-formed")
    assert not keeps("<think> </think><answer>a</answer>")
    assert not keeps("<think>a <answer>a</answer>", "lenient")


@pytest.mark.parametrize(
    ("template", "options", "opened"),
    [
        ("Qwen-QwQ-32B", {"enable_thinking": True}, True),
        ("Qwen-QwQ-32B", {}, False),
        ("Qwen-Qwen3-0.6B", {}, False),
        ("Qwen-Qwen3-0.6B", {"enable_thinking": False}, False),
        ("Qwen-Qwen2.5-7B-Instruct", {}, False),
    ],
)
def test_real_templates_that_open_a_thought(shared_data: Path, template: str, options: dict[str, bool], opened: bool):
    tokenizer = tokenizer_of(shared_data / "chat_templates" / f"{template}.jinja")
    joiner = Joiner("raw", tokenizer, dialects.load("xml"), options)
    stop = SamplingParams(1.0, 0, 1.0, 99, ("</answer>",), tokenizer.eos_ids, True, thought=parsing.THOUGHT)
    ids = joiner.prompt(Messages("What is in <think>?"))
    episode = ActiveEpisode(Request(ids, stop, None, None, 1, None), 0, tokenizer, 999)
    for token in tokenizer.encode("so: <answer>no</answer>, hm</think>\n\n<answer>yes</answer>."):
        if episode.take(token, 0.0) == "stop":
            break
    (turn,) = episode.turns
    assert turn.opened is opened
    assert parsing.first([turn.content], "answer") == ("yes" if opened else "no")
