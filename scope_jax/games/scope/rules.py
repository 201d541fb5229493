"""The rules of SCOPE: turns, rewards (Eq. (4) to (7)), formats (App. F), difficulty (App. G), rubrics in a reply.

Pure functions. Eq. (1), the rubric score, is in `play.rubrics`.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scope_jax.config import Config, one_of
from scope_jax.games.scope.options import ChallengerRewardSection, MissingAnswer, SolverRewardSection
from scope_jax.grading.rewards import mean
from scope_jax.play import searching, tool_turns
from scope_jax.play.rubrics import Criterion
from scope_jax.rollouts.types import Completion, Turn
from scope_jax.text import dialects, parsing
from scope_jax.text.strict_json import is_text

GATES = ("entity", "relevance")
REASONS = ("no_task", *GATES, "no_rubrics")  # for rejecting a draft
_ROUNDING = 1e-9  # the mean of eight values 0.2 is 0.19999999999999998


# --------------------------------------------------------------------------------------------------------------- turns
@dataclass(frozen=True)
class ParsedTurn:
    """One sampled turn as the rules see it."""

    text: str
    """Its text up to the end of its first search, with thinking."""
    content: str
    """The same without thinking, which is replaced by spaces."""
    searches: int = 0
    """How many of its searches were run: at most one."""
    malformed: int = 0
    """How many of its searches were malformed."""


def parse_turn(cfg: Config, turn: Turn, final: str, answered: bool) -> ParsedTurn:
    """A turn of an episode that ends in `<final>`: text after its first search is dropped; the search counts if it was
    answered."""
    dialect = dialects.load(cfg.model.dialect)
    found = searching.searches(turn.content, dialect)
    first = tool_turns.answered(turn, found, replace(searching.FIRST, finals=(final,)))
    if first:
        turn = replace(turn, text=turn.text[: first[0].closed])
    malformed = sum(not one.valid and one.start < len(turn.text) for one in found)
    return ParsedTurn(turn.written, turn.content, int(bool(first) and answered), malformed)


def parse_turns(cfg: Config, completion: Completion, final: str) -> tuple[ParsedTurn, ...]:
    """The sampled turns of an episode that ends in `<final>`; every turn but the episode's last one was answered."""
    return tuple(
        parse_turn(cfg, turn, final, index < len(completion.turns) - 1)
        for index, turn in enumerate(completion.turns)
        if turn.kind == "sampled"
    )


def task_of(turns: Sequence[ParsedTurn], require_question: bool) -> str | None:
    """q: content of the last closed <task> of the last turn, or of the <question> inside it; None if missing or empty.

    require_question: a task without a <question> is invalid.
    """
    task = parsing.last([turns[-1].content], "task") if turns else None
    if not task:
        return None
    question = parsing.last([task], "question")
    if question is None:
        return None if require_question else task
    return question or None


def answer_of(turns: Sequence[ParsedTurn]) -> str | None:
    """a: content of the last closed <answer> of the last turn; None if missing or empty."""
    return (parsing.last([turns[-1].content], "answer") or None) if turns else None


def searches_run(turns: Sequence[ParsedTurn]) -> int:
    """Number of searches that were run in an episode."""
    return sum(turn.searches for turn in turns)


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


def solver_tool_reward(turns: Sequence[ParsedTurn]) -> float:
    """min(searches run in all turns but the last / number of those turns, 1) (App. F.2).

    0 for an episode of one turn, where the paper's formula divides 0 by 0 (as in the released code).
    """
    earlier = turns[:-1]
    return min(sum(turn.searches for turn in earlier) / len(earlier), 1.0) if earlier else 0.0


def search_reward(turns: Sequence[ParsedTurn], full: int) -> float:
    """S(a) = min(searches run in all turns / full, 1) (App. F.2, where full = 3)."""
    return min(searches_run(turns) / full, 1.0)


@dataclass(frozen=True)
class Format:
    """The three parts of a format reward, each in [0, 1]."""

    think: float
    """Share of the turns that contain thinking."""
    tool: float
    """Searches that were run, as a share of those wanted."""
    result: float
    """Structure of a challenger's task, or presence of a solver's answer."""

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
    pairs = zip(scores, answered, strict=True)
    counted = [score if has_answer else 0.0 for score, has_answer in pairs if has_answer or missing == "zero"]
    graded = [score for score in counted if score is not None]
    return mean(graded) if graded else None


def in_window(value: float | None, window: tuple[float, float]) -> bool:
    """ℓ ≤ ḡ ≤ u with both bounds included (Algorithm 1 l.24), up to rounding of the mean; False without a mean."""
    return value is not None and window[0] - _ROUNDING <= value <= window[1] + _ROUNDING


def stratify(count: int, weights: Sequence[float]) -> list[int]:
    """How many of `count` items each weight gets, by the largest-remainder method (ties go to the earlier weight).

    The "4:3:2" rule of App. G: 9 items give exactly 4, 3, 2.
    """
    total = sum(weights)
    exact = [count * weight / total for weight in weights]
    shares = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda index: shares[index] - exact[index])  # stable
    for index in order[: count - sum(shares)]:
        shares[index] += 1
    return shares


# ------------------------------------------------------------------------------------------------------ App. H: rubrics
_RUBRIC = re.compile(r"<rubric(\s[^<>]*+)?+>")
_PRIORITY = re.compile(r"""(?<!\S)priority\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"']+))""")
_ENTITY = re.compile(r"&(?:[a-zA-Z]{1,31}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_FENCES = ("```", "```json", "```xml")


def rubric_of(reply: str, weights: Mapping[str, float], fewest: int, most: int) -> tuple[Criterion, ...] | None:
    """The criteria of a reply, in <rubrics> or as JSON; None unless each one is complete and their number is allowed.

    XML: <rubrics> with only <rubric> elements and comments. JSON: a list of {"criterion", "priority"}, or an object
    that holds such a list as "rubrics", by itself or in a code fence with any text around it. weights: w_k by priority;
    if they differ, a missing or unknown priority makes the reply invalid. A rubric whose weights are all 0 cannot grade
    anything and is rejected.
    """
    text = _unfenced(parsing.without_thinking(reply).strip())
    pairs = _json_pairs(text) if text[:1] in ("{", "[") else _xml_pairs(text)
    if pairs is None:
        pairs = next(filter(None, map(_json_pairs, parsing.fenced(text, ("", "json")))), None)
    if pairs is None or not fewest <= len(pairs) <= most:
        return None
    criteria = []
    for priority, criterion in pairs:
        weight = _weight(priority, weights)
        if weight is None or not criterion or not is_text(priority + criterion):
            return None
        criteria.append(Criterion(criterion, weight, priority))
    return tuple(criteria) if sum(item.weight for item in criteria) > 0 else None


def _weight(priority: str, weights: Mapping[str, float]) -> float | None:
    """w_k of a priority. An unknown priority gets the common weight if all weights are equal; otherwise None."""
    values = set(weights.values())
    return weights.get(priority, values.pop() if len(values) == 1 else None)


def _unfenced(text: str) -> str:
    """The content of a Markdown code fence if `text` is one; otherwise `text`."""
    head, _, body = text.partition("\n")
    return body.removesuffix("\n```").strip() if head.rstrip() in _FENCES and body.endswith("\n```") else text


def _xml_pairs(text: str) -> list[tuple[str, str]] | None:
    """(priority, criterion) of each <rubric>, with priority "" if it has none; None if any element is incomplete."""
    block = parsing.first([text], "rubrics")
    if block is None:
        return None
    *items, rest = parsing.without_comments(block).split("</rubric>")
    pairs = []
    for item in items:
        item = item.strip()
        opening = _RUBRIC.match(item)
        if opening is None or _RUBRIC.search(item, opening.end()):
            return None
        given = _PRIORITY.search(opening[1] or "")
        priority = next((value for value in given.groups() if value is not None), "") if given else ""
        criterion = _ENTITY.sub(lambda entity: html.unescape(entity[0]), item[opening.end() :])
        pairs.append((priority.strip(), " ".join(criterion.split())))
    return None if rest.strip() else pairs


def _json_pairs(text: str) -> list[tuple[str, str]] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    items: Any = value.get("rubrics") if isinstance(value, dict) else value
    if not isinstance(items, list):
        return None
    pairs = []
    for item in items:
        if not isinstance(item, dict):
            return None
        criterion, priority = item.get("criterion"), item.get("priority", "")
        if not isinstance(criterion, str) or not isinstance(priority, str):
            return None
        pairs.append((priority, " ".join(criterion.split())))
    return pairs
