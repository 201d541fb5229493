"""The equations of SCOPE and the format rules of its Appendix F, as pure functions of plain values.

Eq. (1), the rubric score, is in `play.rubrics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scope_jax.config import one_of
from scope_jax.games.scope.options import ChallengerRewardSection, MissingAnswer, SolverRewardSection
from scope_jax.play.rewards import mean
from scope_jax.text import parsing

_ROUNDING = 1e-9  # the mean of eight values 0.2 is 0.19999999999999998


@dataclass(frozen=True)
class ParsedTurn:
    """One sampled turn as the rules see it: its whole text, its content (thinking replaced by spaces), how many of its
    searches were run and how many were malformed."""

    text: str
    content: str
    searches: int = 0
    malformed: int = 0


# ---------------------------------------------------------------------------------------------------------- equations
def challenger_reward(card: ChallengerRewardSection, format_score: float, passed: bool, difficulty: float) -> float:
    """R_C = λ_fmt · r_fmt + λ_diff · 𝟙[QG] · f_diff (SCOPE Eq. (4)), and 0 for r_fmt = 0 (App. F.1).

    passed: whether the task passed the quality gates; difficulty: f_diff(ḡ; τ), 0 without a ḡ.
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
    """L(a) (SCOPE Eq. (7)) of an answer with this many tokens; always 1 if the card has no length penalty.

    1                                                                  |a| ≤ ℓ_soft
    ℓ_min + (1 − ℓ_min)/2 · (1 + cos(π (|a| − ℓ_soft)/(ℓ_hard − ℓ_soft)))   between
    ℓ_min                                                              |a| ≥ ℓ_hard
    """
    if not card.length_penalty or tokens <= card.soft_limit:
        return 1.0
    if tokens >= card.hard_limit:
        return 0.0 if card.zero_beyond_double and tokens > 2 * card.hard_limit else card.floor
    excess = (tokens - card.soft_limit) / (card.hard_limit - card.soft_limit)
    return card.floor + (1.0 - card.floor) / 2.0 * (1.0 + math.cos(math.pi * excess))


# ------------------------------------------------------------------------------------------------------ App. F: format
def has_thought(text: str, rule: str) -> bool:
    """True if a turn contains thinking. rule: "paired", a closed <think>; "opening", the opening tag is enough;
    "starts", the turn begins with it."""
    match rule:
        case "paired":
            return parsing.THOUGHT[1] in text.partition(parsing.THOUGHT[0])[2]
        case "opening":
            return parsing.THOUGHT[0] in text
        case "starts":
            return text.lstrip().startswith(parsing.THOUGHT[0])
    raise ValueError(f"unknown rule for thinking {rule!r}")


def think_reward(turns: Sequence[ParsedTurn], rule: str) -> float:
    """Share of the turns that contain thinking (App. F.1, F.2); 0 without any turns."""
    return mean([float(has_thought(turn.text, rule)) for turn in turns]) if turns else 0.0


def challenger_tool_reward(turns: Sequence[ParsedTurn], expected: int, subtract_malformed: bool) -> float:
    """min(turns with a search that was run / expected, 1) (App. F.1); 1 if no search is expected.

    subtract_malformed: turns with only malformed searches are subtracted from the numerator, to no less than 0
    (released code).
    """
    if expected <= 0:
        return 1.0
    valid = sum(turn.searches > 0 for turn in turns)
    if subtract_malformed:
        valid = max(0, valid - sum(turn.malformed > 0 and not turn.searches for turn in turns))
    return min(valid / expected, 1.0)


def structure_reward(turns: Sequence[ParsedTurn], require_question: bool) -> float:
    """1 if the last turn contains a task (App. F.1), else 0."""
    return float(task_of(turns, require_question) is not None)


def task_of(turns: Sequence[ParsedTurn], require_question: bool) -> str | None:
    """q: content of the last closed <task> of the last turn, or of the <question> inside it; None if missing or empty.

    require_question: a task without a <question> is invalid.
    """
    found = parsing.last([turns[-1].content], "task") if turns else None
    if not found:
        return None
    question = parsing.last([found], "question")
    if question is None:
        return None if require_question else found
    return question or None


def solver_tool_reward(turns: Sequence[ParsedTurn]) -> float:
    """min(searches run in all turns but the last / number of those turns, 1) (App. F.2).

    0 for an episode of one turn, where the paper's formula divides 0 by 0 (as in the released code).
    """
    earlier = turns[:-1]
    return min(sum(turn.searches for turn in earlier) / len(earlier), 1.0) if earlier else 0.0


def answer_of(turns: Sequence[ParsedTurn]) -> str | None:
    """a: content of the last closed <answer> of the last turn; None if missing or empty."""
    return (parsing.last([turns[-1].content], "answer") or None) if turns else None


def searches_run(turns: Sequence[ParsedTurn]) -> int:
    """Number of searches that were run in an episode."""
    return sum(turn.searches for turn in turns)


def search_reward(turns: Sequence[ParsedTurn], full: int) -> float:
    """S(a) = min(searches run in all turns / full, 1) (App. F.2, where full = 3)."""
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


def challenger_format(card: ChallengerRewardSection, turns: Sequence[ParsedTurn], expected: int) -> Format:
    """The parts of r_fmt(o^C) (App. F.1)."""
    return Format(
        think_reward(turns, card.think),
        challenger_tool_reward(turns, expected, card.subtract_malformed),
        structure_reward(turns, card.require_question),
    )


def solver_format(card: SolverRewardSection, turns: Sequence[ParsedTurn]) -> Format:
    """The parts of r_fmt(o^S) (App. F.2)."""
    return Format(think_reward(turns, card.think), solver_tool_reward(turns), float(answer_of(turns) is not None))


# -------------------------------------------------------------------------------------------------- App. G: difficulty
def mean_score(scores: Sequence[float | None], answered: Sequence[bool], missing: str) -> float | None:
    """ḡ over a task's rollouts; None if none of them counts.

    A rollout without an answer scores 0 (missing = "zero", the mean of all N grades of section 3.1) or is left out
    ("exclude"); one whose grading failed (None) is always left out. Raises ValueError for any other `missing`.
    """
    one_of("missing", missing, MissingAnswer)
    kept = [
        score if has_answer else 0.0
        for score, has_answer in zip(scores, answered, strict=True)
        if (missing == "zero" if not has_answer else score is not None)
    ]
    return mean([float(score) for score in kept if score is not None]) if kept else None


def in_window(value: float | None, window: tuple[float, float]) -> bool:
    """ℓ ≤ ḡ ≤ u with both bounds included (Algorithm 1 l.24), up to rounding of the mean; False without a mean."""
    return value is not None and window[0] - _ROUNDING <= value <= window[1] + _ROUNDING
