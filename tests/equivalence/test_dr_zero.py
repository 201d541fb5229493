"""Dr. Zero's rules return the numbers that the authors' functions returned for the same inputs (dr_zero.json)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.config import SamplingSection
from scope_jax.games.dr_zero import rules
from scope_jax.games.dr_zero.options import LOSS
from scope_jax.games.dr_zero.state import Passage
from scope_jax.grading.rewards import exact_match
from scope_jax.learner import advantages
from scope_jax.play import searching
from scope_jax.play.tools import Agent, Rollout
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.games.harness import ScriptedTools

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "dr_zero.json").read_text(encoding="utf-8"))
HERMES = dialects.load("hermes")


@pytest.mark.parametrize("case", RECORDED["proposals"], ids=lambda case: f"{case['hops']} {case['turns'][-1][:60]}")
def test_format_scores(case: dict[str, Any]) -> None:
    """Question, answer and score of whole episodes, whose searches are written and answered in Qwen's dialect."""
    turns = [re.sub(r"\[search: (.*?)\]", lambda m: searching.written_search(m[1], HERMES), t) for t in case["turns"]]
    tools = ScriptedTools(lambda context: turns[context.turn], RECORDED["results"], dialect="hermes", turns="chat")
    agent = searching.with_searches(Agent("actor", SamplingSection(), max_turns=5), "answer")
    ((completion,),) = tools.play("proposer", [Rollout("0", Messages("Write."))], agent)
    passage = Passage("0", RECORDED["document"], case["hops"])
    pair = rules.pair_of(completion, passage)
    assert (pair.question, pair.answer) == (case["question"], case["answer"])
    assert rules.format_of(completion, passage, pair, HERMES).total == pytest.approx(case["format"], abs=1e-15)
    assert len(searching.queries_run(completion, HERMES)) == sum("[search" in turn for turn in case["turns"])


@pytest.mark.parametrize("case", RECORDED["attempts"], ids=lambda case: case["answer"])
def test_exact_match_and_difficulty(case: dict[str, Any]) -> None:
    right = [exact_match(prediction, [case["answer"]]) for prediction in case["predictions"]]
    assert right == [bool(each) for each in case["right"]]
    assert rules.difficulty(sum(right), len(right)) == pytest.approx(case["difficulty"], abs=1e-15)


def test_advantages_of_hop_groups() -> None:
    """Four groups, the last of one; the authors' function computes means and deviations in float32."""
    batch = RECORDED["batch"]
    rewards = 0.5 * np.array(batch["format"]) + np.array(batch["difficulty"])
    np.testing.assert_allclose(rewards, batch["reward"], rtol=1e-15)
    groups = [f"{hops} hops" for hops in batch["hops"]]
    ours = advantages.compute(rewards, groups, np.ones(len(rewards)), LOSS)
    np.testing.assert_allclose(ours, batch["advantage"], rtol=2e-6, atol=2e-7)
    assert ours[9] == pytest.approx(1.25, rel=1e-5)  # alone, it keeps its reward


def test_advantages_against_torch() -> None:
    torch = pytest.importorskip("torch")
    batch, ours = RECORDED["batch"], []
    rewards, hops = torch.tensor(batch["reward"], dtype=torch.float64), torch.tensor(batch["hops"])
    for reward, hop in zip(rewards, hops, strict=True):
        group = rewards[hops == hop]
        mean, std = (group.mean(), group.std(correction=1)) if len(group) > 1 else (0.0, 1.0)
        ours.append(float((reward - mean) / (std + 1e-6)))
    computed = advantages.compute(
        np.array(batch["reward"]), [str(hop) for hop in batch["hops"]], np.ones(len(ours)), LOSS
    )
    np.testing.assert_allclose(computed, ours, rtol=1e-12)
