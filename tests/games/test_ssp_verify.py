"""RAG verification: which documents in which order, and which model answers (§3.2, §4.4)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from scope_jax.games import GAMES, ssp
from scope_jax.games.ssp import rules
from scope_jax.text.messages import Messages
from tests.games.harness import (
    ITEMS,
    RESULTS,
    RIVERS,
    Plan,
    ScriptedTools,
    card,
    doc,
    episodes_of,
    play_step,
    question_about,
    world,
)

JUDGE = {"url": "http://127.0.0.1:9", "model": "m"}


def shown(prompt: str) -> str:
    """The materials of a verification prompt."""
    return prompt.split("Materials: ")[1].split("\n\nQuestion: ")[0]


def titles(prompt: str) -> list[str]:
    return re.findall(r'\(Title: "(\w+)"\)', shown(prompt))


def own(item: int) -> list[str]:
    return re.findall(r'\(Title: "(\w+)"\)', RESULTS[RIVERS[item]])


def play(plan: Plan | None = None, step: int = 0, **options: Any) -> tuple[ScriptedTools, list[Any], dict[str, float]]:
    tools = world(plan)
    episodes, _, metrics = play_step(GAMES["ssp"], card(**options), tools, {"pool": []}, ITEMS, step)
    return tools, episodes, metrics


@pytest.mark.parametrize("count", [0, 1, 4, 100])
def test_noise_comes_from_the_other_episodes_only(count: int):
    tools, _, _ = play(noise_documents=count)
    for item in range(4):
        seen = titles(tools.prompts["verify", f"{item} attempt 0"])
        others = [title for other in range(4) if other != item for title in own(other)]
        assert len(seen) == len(set(seen)) == len(own(item)) + min(count, len(others))
        assert set(own(item)) <= set(seen)
        assert set(seen) - set(own(item)) <= set(others)


def test_documents_are_renumbered_and_shuffled():
    tools, _, _ = play()
    texts = [shown(tools.prompts["verify", f"{item} attempt 0"]) for item in range(4)]
    for item, text in enumerate(texts):
        numbers = re.findall(r"^Doc (\d+) \(Title", text, re.MULTILINE)
        assert numbers == [str(number) for number in range(1, len(own(item)) + 5)]
    orders = [titles(tools.prompts["verify", f"{item} attempt 0"])[: len(own(item))] for item in range(4)]
    assert orders != [own(item) for item in range(4)]  # the question's own documents are not always first


def test_noise_depends_on_seed_step_and_slot():
    first = play()[0].prompts
    assert play()[0].prompts == first
    assert play(step=1)[0].prompts["verify", "0 attempt 0"] != first["verify", "0 attempt 0"]
    assert play(seed=1)[0].prompts["verify", "0 attempt 0"] != first["verify", "0 attempt 0"]


@pytest.mark.parametrize("mark", ["…", "...(truncated)", " "])
def test_a_document_that_the_proposer_read_is_not_noise(mark: str):
    # Item 1 reads the same document as item 0, truncated by the token budget, and one more.
    cut = doc(1, "Paris", f"Paris lies on{mark}") + "\n\n" + doc(2, "Lutetia", "An old name.")
    plan = Plan(proposals={"1": ["<search>cut</search>", f"<question>{question_about(1)}</question>"]})
    tools = ScriptedTools(plan, {**RESULTS, "cut": cut})
    play_step(GAMES["ssp"], card(noise_documents=100), tools, {"pool": []}, ITEMS[:2], 0)
    assert sorted(titles(tools.prompts["verify", "1 attempt 0"])) == ["Lutetia", "Paris", "Rouen", "Seine"]
    assert sorted(titles(tools.prompts["verify", "0 attempt 0"])) == ["Lutetia", "Paris", "Rouen", "Seine"]


def test_documents_of_rejected_questions_are_used_as_noise():
    plan = Plan(proposals={"1": ["<search>Tiber</search>", "<question>Rome?</question>"]})
    tools = world(plan)
    play_step(GAMES["ssp"], card(noise_documents=100), tools, {"pool": []}, ITEMS[:2], 0)
    assert set(titles(tools.prompts["verify", "0 attempt 0"])) == set(own(0)) | set(own(1))
    assert ("verify", "1 attempt 0") not in tools.prompts


def test_a_resampled_question_gets_noise_from_the_whole_step():
    plan = Plan(proposals={"0": ["nothing"]})
    tools, _, _ = play(plan, fill="resample", noise_documents=100)
    seen = titles(tools.prompts["verify", "0 attempt 1"])
    assert sorted(seen) == sorted(title for item in range(4) for title in own(item))


def test_a_slots_own_earlier_attempt_is_not_noise():
    plan = Plan(proposals={"0": ["<search>Nile</search>", "<question>Nile?</question>"]})
    tools = world(plan)
    play_step(GAMES["ssp"], card(fill="resample", noise_documents=100), tools, {"pool": []}, ITEMS[:2], 0)
    assert set(titles(tools.prompts["verify", "0 attempt 1"])) == set(own(0)) | set(own(1))
    assert set(titles(tools.prompts["verify", "1 attempt 0"])) == set(own(1)) | set(own(2))  # another slot's attempt is


def test_whole_trajectories_as_noise_as_in_the_released_code():
    tools, _, _ = play(noise_unit="trajectory", noise_documents=2)
    text = shown(tools.prompts["verify", "0 attempt 0"])
    blocks = [RESULTS[river] for river in RIVERS if RESULTS[river] in text]
    assert RESULTS["Seine"] in blocks and len(blocks) == 3
    assert sum(map(len, blocks)) + 2 * len("\n\n") == len(text)


@pytest.mark.parametrize("cut", ["Paris lies…", "Paris lies on the...(truncated)", "Paris l ...(truncated)"])
def test_of_two_copies_the_untruncated_one_is_used(cut: str):
    """The token budget may have truncated a passage in one result but not in an earlier or later one."""
    whole, other = doc(2, "Paris", "Paris lies on the Seine."), doc(1, "Seine", "A river.")
    results = [doc(1, "Paris", cut), f"{other}\n\n{whole}"]
    expected = ['(Title: "Paris")\nParis lies on the Seine.', '(Title: "Seine")\nA river.']
    assert rules.units(results, "document") == expected
    assert sorted(rules.units(results[::-1], "document")) == expected
    queries = ["<search>cut</search>", "<search>whole</search>", f"<question>{question_about(0)}</question>"]
    tools = ScriptedTools(Plan(proposals={"0": queries}), {**RESULTS, "cut": results[0], "whole": results[1]})
    play_step(GAMES["ssp"], card(noise_documents=0), tools, {"pool": []}, ITEMS[:1], 0)
    assert "Paris lies on the Seine." in shown(tools.prompts["verify", "0 attempt 0"])


def test_results_in_every_format_are_split_into_documents():
    joined = ['Doc 1 (Title: "A (x)")\none\n\nDoc 2 (Title: B)\ntwo', "Doc 1(Title: C) three\nDoc 2(Title: B) four\n"]
    assert rules.units(joined, "document") == [
        '(Title: "A (x)")\none',
        "(Title: B)\ntwo",
        "(Title: C) three",
        "(Title: B) four",
    ]
    assert rules.units(["no head at all"], "document") == ["no head at all"]
    assert rules.units(joined, "trajectory") == ["\n\n".join(joined)]
    assert rules.units([], "trajectory") == [] and rules.units([], "document") == []
    assert rules.render(["(Title: A)\na", "(Title: B)\nb"], "document") == "Doc 1 (Title: A)\na\n\nDoc 2 (Title: B)\nb"


def test_passages_without_a_title_are_split_and_shown_without_one():
    result = 'Doc 1\nThe Seine is a river.\n\nDoc 2 (Title: "Paris")\nA city.\n\nDoc 3\nDoc 12 lists rivers.'
    texts = ["The Seine is a river.", '(Title: "Paris")\nA city.', "Doc 12 lists rivers."]
    assert rules.units([result], "document") == texts
    assert rules.render(texts, "document") == result


def test_noise_documents_are_sampled_uniformly():
    counts = dict.fromkeys("abcdef", 0)
    for seed in range(600):
        mixed = rules.mix(["own"], list("abcdef"), 2, np.random.default_rng(seed))
        assert len(mixed) == 3 and "own" in mixed
        for text in set(mixed) - {"own"}:
            counts[text] += 1
    assert min(counts.values()) > 150 and max(counts.values()) < 250  # 200 expected of each


def test_a_document_of_several_other_episodes_is_noise_once():
    mixed = rules.mix(["own"], ["popular text", "popular…", "rare", "own"], 9, np.random.default_rng(0))
    assert sorted(mixed) in (["own", "popular text", "rare"], ["own", "popular…", "rare"])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("It says so. Answer: Paris", ""),
        ("Answer: the PARIS.", ""),
        ("Answer: Rouen", "verify_wrong"),
        ("Paris", "verify_no_answer"),
        ("Answer: ", "verify_no_answer"),
    ],
)
def test_the_policy_answers_from_the_materials(reply: str, reason: str):
    _, episodes, metrics = play(Plan(replies={question_about(0): reply}))
    proposer = episodes_of(episodes, "proposer")[0]
    assert (proposer.text["rejected"], proposer.text["verification"]) == (reason, reply)
    assert metrics["verify/passed"] == (0.75 if reason else 1.0)


def test_verification_uses_the_cards_sampling_parameters():
    tools, _, _ = play(verify_temperature=0.0, verify_max_tokens=77)
    assert tools.options["verify"] == {"temperature": 0.0, "max_tokens": 77, "stop": ()}


def test_materials_that_do_not_fit_reject_the_question():
    tools = world()
    cfg = card(verify_max_tokens=512)
    room = max(tools.prompt_tokens(Messages(p)) for p in play()[0].prompts.values())
    fits = cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update={"max_length": room + 512})})
    tight = cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update={"max_length": 600 + 512})})
    episodes, _, _ = play_step(GAMES["ssp"], fits, world(), {"pool": []}, ITEMS, 0)
    assert [e.text["rejected"] for e in episodes_of(episodes, "proposer")] == [""] * 4
    tools.results = RESULTS | {"Seine": doc(1, "Paris", "Paris lies on the Seine. " * 40)}
    episodes, _, metrics = play_step(GAMES["ssp"], tight, tools, {"pool": []}, ITEMS[:1], 0)
    assert [e.text["rejected"] for e in episodes_of(episodes, "proposer")] == ["materials_too_long"]
    assert "verify/passed" not in metrics and metrics["proposer/rejected_materials_too_long"] == 1.0


def test_without_verification_every_question_passes():
    tools, episodes, metrics = play(Plan(replies={question_about(0): "Answer: Rouen"}), verify="off")
    assert not [name for role, name, _ in tools.asked if role == "verify"]
    assert [e.text["rejected"] for e in episodes_of(episodes, "proposer")] == [""] * 4
    assert metrics["verify/passed"] == 1.0


def test_the_external_judge_answers_and_then_grades():
    def reply(message: str) -> str:
        if "Materials:" in message:  # it answers
            return "Answer: Paris (Lutetia)" if question_about(0) in message else "Answer: Rome"
        return "Correct" if "Paris (Lutetia)" in message else "Wrong"  # it grades

    options = {"verify": "judge", "grader": "exact-match-then-judge", "judge_table": JUDGE, "fill": "dummy"}
    tools = world(judge_reply=reply)
    episodes, _, metrics = play_step(GAMES["ssp"], card(**options), tools, {"pool": []}, ITEMS[:3], 0)
    assert [e.text["rejected"] for e in episodes_of(episodes, "proposer")] == ["", "", "verify_wrong"]
    assert not [name for role, name, _ in tools.asked if role == "verify"]
    assert metrics["judge/asked"] == 4.0  # verification: Paris (Lutetia), Rome for Cairo; solver: London twice
    assert metrics["judge/malformed"] == 0.0


def test_solver_answers_go_to_the_judge_and_malformed_verdicts_are_counted():
    options = {"grader": "exact-match-then-judge", "judge_table": JUDGE}
    tools = world(judge_reply=lambda message: "Correct")
    episodes, _, metrics = play_step(GAMES["ssp"], card(**options), tools, {"pool": []}, ITEMS[:1], 0)
    assert [e.reward for e in episodes_of(episodes, "solver")] == [1.0, 1.0] and metrics["judge/asked"] == 1.0
    assert [e.reward for e in episodes_of(episodes, "proposer")] == [0.0]
    tools = world(judge_reply=lambda message: "Who knows")
    episodes, _, metrics = play_step(GAMES["ssp"], card(**options), tools, {"pool": []}, ITEMS[:1], 0)
    assert [e.reward for e in episodes_of(episodes, "solver")] == [1.0, 0.0]
    counts = [metrics[f"judge/{name}"] for name in ("asked", "retried", "malformed", "refused")]
    assert counts == [1.0, 1.0, 1.0, 0.0] and len(tools.judged) == 2


def test_every_search_of_a_turn_is_run():
    plan = Plan(proposals={"0": ['<search>["Seine", "Nile"]</search>', f"<question>{question_about(0)}</question>"]})
    tools, episodes, _ = play(plan, noise_documents=0)
    assert tools.searched[:2] == ["Seine", "Nile"]
    turn = episodes_of(episodes, "proposer")[0].text["turns"][1]["text"]
    assert turn == f"\n<information>\n{RESULTS['Seine']}\n---\n{RESULTS['Nile']}\n</information>\n\n"
    assert sorted(titles(tools.prompts["verify", "0 attempt 0"])) == sorted(own(0) + own(2))


def test_a_search_in_the_last_turn_is_not_run():
    plan = Plan(proposals={"0": ["<search>Seine</search>", "<search>Nile</search>"]})
    tools = world(plan)
    episodes, _, metrics = play_step(GAMES["ssp"], card(proposer={"max_turns": 2}), tools, {"pool": []}, ITEMS[:1], 0)
    assert metrics["proposer/searches"] == 1.0
    kinds = [turn["kind"] for turn in episodes_of(episodes, "proposer")[0].text["turns"]]
    assert kinds == ["sampled", "observation", "sampled"]


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({"grader": "exact-match"}, False),
        ({"grader": "exact-match", "verify": "judge"}, True),
        ({"grader": "judge"}, True),
        ({"grader": "exact-match-then-judge", "verify": "off"}, True),
    ],
)
def test_an_external_model_that_nothing_asks_is_not_required(options: dict[str, Any], asks: bool):
    """A run probes the models of its game before it starts."""
    assert bool(ssp.GAME.judges(card(judge_table=JUDGE, **options))) == asks
