"""R-Zero's rules give the numbers of the authors' released functions on recorded inputs.

r_zero_released.json has inputs and numbers, with the commit and the name of each function; no code.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.games.r_zero import rules
from scope_jax.grading.math_answers import Comparison
from scope_jax.grading.mathematics.worker import compare
from scope_jax.grading.repetition import bleu, cluster_shares, ngrams
from scope_jax.learner import advantages
from scope_jax.learner.types import Episode
from scope_jax.play.votes import Pair, majorities
from scope_jax.text import parsing
from tests.games import r_zero_world

RELEASED: dict[str, Any] = json.loads(Path(__file__).with_name("r_zero_released.json").read_text(encoding="utf-8"))


def equal(pairs: list[Pair]) -> list[bool]:
    return [compare(*Comparison(one or "", (other,))) == "equal" for one, other in pairs]


def test_distances_and_shares_of_clusters() -> None:
    """nltk's BLEU-4 with smoothing 1 and scikit-learn's clusters, of repeated, short, empty and reworded questions."""
    texts, wanted = RELEASED["clusters"]["texts"], np.array(RELEASED["clusters"]["distances"])
    grams = [ngrams(text) for text in texts]
    measured = np.zeros_like(wanted)  # a text has no distance from itself, whatever BLEU says of short ones
    for i, j in combinations(range(len(texts)), 2):
        measured[i, j] = measured[j, i] = 1 - bleu(grams[i], grams[j])
    np.testing.assert_allclose(measured, wanted, atol=1e-11)
    assert cluster_shares(texts, 0.5) == RELEASED["clusters"]["shares"]


@pytest.mark.parametrize("name", RELEASED["votes"]["cases"])
def test_labels_and_shares_of_votes(name: str) -> None:
    """There an answer without a box is the text None; hence `unanswered_agree`."""
    case = RELEASED["votes"]["cases"][name]
    answers = [parsing.boxed(text) for text in case["texts"]]
    ((label, share),) = majorities([answers], equal, unanswered_agree=True)
    assert (str(label), share) == (case["label"], case["share"])


def test_rewards_of_the_challenger() -> None:
    """Half the uncertainty, no floor, -1 for a reply without a question, and the penalty for all."""
    case = RELEASED["challenger"]
    card = r_zero_world.options(uncertainty_weight=0.5, floor=False, invalid_reward=-1.0)
    questions = [parsing.last([reply], "question") or "" for reply in case["replies"]]
    repeated = cluster_shares(questions, card.repetition_distance)
    rewards = [rules.challenger_reward(*one, card) for one in zip(case["shares"], repeated, strict=True)]
    np.testing.assert_allclose(rewards, case["rewards"], atol=1e-12)


def test_rewards_of_the_solver() -> None:
    """0.9 for the label and 0.1 for the format; whether a box that is open before its thought ends counts, too."""
    case = RELEASED["solver"]
    agrees = equal([(parsing.boxed(text), case["label"]) for text in case["answers"]])
    assert [float(one) for one in agrees] == case["accuracies"]
    rewards = [rules.solver_reward(one, text, 0.1) for one, text in zip(agrees, case["answers"], strict=True)]
    np.testing.assert_allclose(rewards, case["rewards"], atol=1e-12)


def test_advantages() -> None:
    """(r − mean) / (standard deviation + 1e-6) of a group."""
    groups = RELEASED["advantages"]["groups"]
    episodes = [
        Episode(role="solver", policy="solver", group=f"{place}", datums=(), reward=reward)
        for place, rewards in enumerate(groups)
        for reward in rewards
    ]
    rated, _ = advantages.assign(episodes, r_zero_world.options().solver.loss, None)
    found = [float(one.advantage or 0.0) for one in rated]
    np.testing.assert_allclose(found, RELEASED["advantages"]["advantages"], atol=1e-9)
