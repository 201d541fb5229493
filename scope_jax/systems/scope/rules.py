"""The equations of SCOPE and the rules of its Appendix F, as pure functions of plain values.

Eq. (1), the score of a rubric, is `play.rubrics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scope_jax.config import ChallengerRewardSection, MissingAnswer, SolverRewardSection, one_of
from scope_jax.play.rewards import mean
from scope_jax.text import parsing

_ROUNDING = 1e-9  # the mean of eight times 0.2 is 0.19999999999999998


@dataclass(frozen=True)
class Said:
    """One turn of a policy as the rules see it: its whole text, its content (thinking as spaces), its searches
    that were run and those in a wrong form.
    """

    text: str
    content: str
    searches: int = 0
    malformed: int = 0


# ---------------------------------------------------------------------------------------------------------- equations
def challenger_reward(card: ChallengerRewardSection, format_score: float, passed: bool, difficulty: float) -> float:
    """R_C = λ_fmt · r_fmt + λ_diff · 𝟙[QG] · f_diff (SCOPE Eq. (4)), and 0 for r_fmt = 0 (App. F.1).

    passed: the quality gates; difficulty: f_diff(ḡ; τ), 0 where there is no ḡ.
    """
    if format_score == 0:
        return 0.0
    return card.format * format_score + card.difficulty * (difficulty if passed else 0.0)


def difficulty_reward(mean_score: float, target: float) -> float:
    """f_diff(ḡ; τ) = max(0, 1 − |ḡ − τ| / min(τ, 1 − τ)) (SCOPE Eq. (5)): a tent with its peak at τ."""
    return max(0.0, 1.0 - abs(mean_score - target) / min(target, 1.0 - target))


def solver_reward(
    card: SolverRewardSection, score: float, factor: float, format_score: float, search_score: float
) -> float:
    """R_S = λ_acc · L(a) · g + λ_fmt · r_fmt + λ_search · r_search (SCOPE Eq. (6))."""
    return card.rubric * factor * score + card.format * format_score + card.search * search_score


def length_factor(card: SolverRewardSection, tokens: int) -> float:
    """L(a) (SCOPE Eq. (7)) of an answer of so many tokens; 1 for all if the card has no length penalty.

    1                                                                  |a| ≤ ℓ_soft
    ℓ_min + (1 − ℓ_min)/2 · (1 + cos(π (|a| − ℓ_soft)/(ℓ_hard − ℓ_soft)))   between
    ℓ_min                                                              |a| ≥ ℓ_hard
    """
    if not card.length_penalty or tokens <= card.soft_limit:
        return 1.0
    if tokens >= card.hard_limit:
        return 0.0 if card.zero_beyond_double and tokens > 2 * card.hard_limit else card.floor
    way = (tokens - card.soft_limit) / (card.hard_limit - card.soft_limit)
    return card.floor + (1.0 - card.floor) / 2.0 * (1.0 + math.cos(math.pi * way))


# ------------------------------------------------------------------------------------------------------ App. F: format
def has_thought(text: str, rule: str) -> bool:
    """True if a turn thinks: "paired" a closed <think>, "opening" the tag alone, "starts" the turn begins with it."""
    match rule:
        case "paired":
            return parsing.THOUGHT[1] in text.partition(parsing.THOUGHT[0])[2]
        case "opening":
            return parsing.THOUGHT[0] in text
        case "starts":
            return text.lstrip().startswith(parsing.THOUGHT[0])
    raise ValueError(f"unknown rule for thinking {rule!r}")


def think_reward(turns: Sequence[Said], rule: str) -> float:
    """Share of the turns that think (App. F.1, F.2); 0 without a turn."""
    return mean([float(has_thought(turn.text, rule)) for turn in turns]) if turns else 0.0


def challenger_tool_reward(turns: Sequence[Said], expected: int, subtract_malformed: bool) -> float:
    """min(turns with a search that was run / expected, 1) (App. F.1); 1 where no search is expected.

    subtract_malformed: turns with nothing but a broken search are subtracted first, down to 0 (released code).
    """
    if expected <= 0:
        return 1.0
    valid = sum(turn.searches > 0 for turn in turns)
    if subtract_malformed:
        valid = max(0, valid - sum(turn.malformed > 0 and not turn.searches for turn in turns))
    return min(valid / expected, 1.0)


def structure_reward(turns: Sequence[Said], require_question: bool) -> float:
    """1 if the last turn holds a task (App. F.1), else 0."""
    return float(task_of(turns, require_question) is not None)


def task_of(turns: Sequence[Said], require_question: bool) -> str | None:
    """q: content of the last closed <task> of the last turn, or of the <question> inside it; None without or if empty.

    require_question: a task without that element is none.
    """
    found = parsing.last([turns[-1].content], "task") if turns else None
    if not found:
        return None
    question = parsing.last([found], "question")
    if question is None:
        return None if require_question else found
    return question or None


def solver_tool_reward(turns: Sequence[Said]) -> float:
    """min(searches run in all turns but the last / number of these turns, 1) (App. F.2).

    0 for an episode of one turn, where the paper divides 0 by 0 (as the released code).
    """
    earlier = turns[:-1]
    return min(sum(turn.searches for turn in earlier) / len(earlier), 1.0) if earlier else 0.0


def answer_of(turns: Sequence[Said]) -> str | None:
    """a: content of the last closed <answer> of the last turn; None without or if it is empty."""
    return (parsing.last([turns[-1].content], "answer") or None) if turns else None


def searches_run(turns: Sequence[Said]) -> int:
    """Number of searches that were run in an episode."""
    return sum(turn.searches for turn in turns)


def search_reward(turns: Sequence[Said], full: int) -> float:
    """S(a) = min(searches run in all turns / 3, 1) (App. F.2); `full` is the 3."""
    return min(searches_run(turns) / full, 1.0)


@dataclass(frozen=True)
class Format:
    """The three parts of a format reward, each in [0, 1]."""

    think: float
    tool: float
    result: float  # structure of a challenger's task, or presence of a solver's answer

    @property
    def score(self) -> float:
        """r_fmt = (think + tool + result) / 3 (App. F.1, F.2)."""
        return (self.think + self.tool + self.result) / 3.0


def challenger_format(card: ChallengerRewardSection, turns: Sequence[Said], expected: int) -> Format:
    """The parts of r_fmt(o^C) (App. F.1)."""
    return Format(
        think_reward(turns, card.think),
        challenger_tool_reward(turns, expected, card.subtract_malformed),
        structure_reward(turns, card.require_question),
    )


def solver_format(card: SolverRewardSection, turns: Sequence[Said]) -> Format:
    """The parts of r_fmt(o^S) (App. F.2)."""
    return Format(think_reward(turns, card.think), solver_tool_reward(turns), float(answer_of(turns) is not None))


# -------------------------------------------------------------------------------------------------- App. G: difficulty
def mean_score(scores: Sequence[float | None], answered: Sequence[bool], missing: str) -> float | None:
    """ḡ over a task's rollouts; None where nothing is left to average.

    A rollout without an answer counts 0 (missing "zero", the mean of all N grades of section 3.1) or not at all
    ("exclude"); one whose grading failed (None) never counts. Raises ValueError for any other word.
    """
    one_of("missing", missing, MissingAnswer)
    kept = [
        score if there else 0.0
        for score, there in zip(scores, answered, strict=True)
        if (missing == "zero" if not there else score is not None)
    ]
    return mean([float(score) for score in kept if score is not None]) if kept else None


def in_window(value: float | None, window: tuple[float, float]) -> bool:
    """ℓ ≤ ḡ ≤ u, both bounds included (Algorithm 1 l.24) whatever the mean's rounding; False without a mean."""
    return value is not None and window[0] - _ROUNDING <= value <= window[1] + _ROUNDING
