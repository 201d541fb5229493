"""The exam of a game: how it answers the questions of evaluation sets, and what a card with such sets needs.

An `Exam` is the game's own part: the role that answers, its prompts, how an answer is parsed, and the default
measures. The rest comes from [evaluate] in the card. `scope_jax.evaluation` measures the answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from scope_jax.config import BY_RUBRIC, Config, EvalSet, JudgeSection, Measure, SamplingSection
from scope_jax.data.schemas import Kind
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.play import judging, pairwise, rating, rubrics, searching
from scope_jax.play.roles import Role, external_models, judge_role
from scope_jax.play.rollouts import Rollout
from scope_jax.play.rubrics import Grader
from scope_jax.play.tools import Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

Row = Mapping[str, Any]
Tokens = Callable[[str], int]  # the number of tokens of a text
JUDGE = "exam judge"  # the name of [evaluate.judge] among a run's external models
GRADER = "exam grader"  # that of [evaluate.grader]
GRADED = frozenset(("rubric", "points", "rating"))  # measures for which a grader reads the answer


@dataclass(frozen=True)
class Exam:
    """How a game answers questions."""

    role: Role
    """Who answers, with its turns."""
    prompt: Callable[[Row, Tokens], Messages]
    """The prompt for a row; the second argument counts tokens, for prompts that truncate what they quote."""
    read: Callable[[Completion], str | None]
    """Parses the answer of an episode; None if there is none."""
    measures: tuple[str, ...]
    """Those of a set that lists none."""
    accuracy: tuple[Measure, ...] = ("exact-match",)
    """An answer is correct if one of these measures accepts it; they are tried in order, a judge only for answers that
    the others did not accept."""
    by_task: Mapping[str, tuple[Measure, ...]] = field(default_factory=dict)
    """The same for rows with this `task`."""
    kind: Kind = "questions"
    """The kind of rows with correct answers; rows with rubrics are always `tasks` or `marked`."""
    own: Mapping[str, Callable[[Sequence[Answer], Tools], Sequence[float | None]]] = field(default_factory=dict)
    """Measures of the game's own by name, which cards list like the built-in ones: a number for each answer, or None
    for one that it does not measure. They are averaged."""
    prompts: str | None = None
    """The folder with the game's own judge.txt; None: `evaluate.prompts`."""
    grader: Grader | None = None
    """The game's rubric grader; None: as set in `evaluate.grader`."""
    within: Callable[[int], Callable[[Row, Tokens], Messages]] | None = None
    """`prompt` with at most this many tokens, for suites that set their own limit; None: the game truncates nothing."""
    prompt_tokens: int | None = None
    """The card's own limit for `prompt`."""


@dataclass(frozen=True)
class Answer:
    """One answer to a question."""

    row: Row
    """The question."""
    prompt: Messages
    """How it was put."""
    completion: Completion
    """The episode."""
    text: str | None
    """The parsed answer; None if there is none."""
    searches: int | None
    """Number of searches; None in a game that does not search."""
    sample: int
    """Its number among the answers to its question."""
    sampling: SamplingSection
    """How it was sampled: as its set says. For measures of the game's own that sample on."""


# -------------------------------------------------------------------------------------------------------- requirements
def max_turns_of(cfg: Config, exam: Exam) -> int:
    """Most turns of an episode: one, if nothing can be called. Raises UserError if the card then has a number."""
    agent = exam.role.agent
    if cfg.evaluate.max_turns is None:
        return agent.max_turns if agent.tools else 1
    if not agent.tools:
        raise UserError(
            f"evaluate.max_turns is {cfg.evaluate.max_turns}, but in exams of {cfg.system} nothing is searched or "
            "called, so an episode has one turn; remove it."
        )
    return cfg.evaluate.max_turns


def measures_of(exam: Exam, eval_set: EvalSet) -> tuple[str, ...]:
    """The measures of a set: those it lists, or the game's. Raises UserError for one that there is not."""
    names = eval_set.measures or exam.measures
    known = [*get_args(Measure), *exam.own]
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            f"the evaluation set {eval_set.name} has the measure {unknown[0]!r}; there are {', '.join(known)}."
        )
    return names


def kind_of(exam: Exam, eval_set: EvalSet) -> Kind:
    """The kind of a set's rows."""
    names = measures_of(exam, eval_set)
    if "points" in names:
        return "marked"
    return "tasks" if any(name in BY_RUBRIC for name in names) else exam.kind


def source_of(exam: Exam, eval_set: EvalSet) -> Source:
    """Where a set's rows come from."""
    return Source(eval_set.path, kind_of(exam, eval_set), eval_set, part=eval_set.part)


def _used_measures(cfg: Config, exam: Exam) -> set[str]:
    """The measures of all sets of the card, including those that `accuracy` consists of."""
    names = {name for eval_set in cfg.evaluate.sets for name in measures_of(exam, eval_set)}
    return names.union(exam.accuracy, *exam.by_task.values()) if "accuracy" in names else names


def uses_base(cfg: Config, exam: Exam) -> bool:
    """True if the base model grades answers of the card's exams."""
    return graded(_used_measures(cfg, exam)) and grader_of(cfg, exam).judge.external is None


def graded(measures: Collection[str]) -> bool:
    """True if one of the measures needs the rubric grader."""
    return not GRADED.isdisjoint(measures)


def judges(cfg: Config, exam: Exam) -> dict[str, JudgeSection]:
    """The external models that the card's exams use, by name. Raises ValueError if the card lacks one of them."""
    used = _used_measures(cfg, exam)
    models = dict([judge_of(cfg)[:2]]) if used & {"judge", "pairwise"} else {}
    return models | external_models([grader_of(cfg, exam).judge]) if graded(used) else models


def judge_of(cfg: Config) -> tuple[str, JudgeSection, str]:
    """(name, table, the table's key in the card) of the external model that judges correctness and preference."""
    if cfg.evaluate.judge is not None:
        return JUDGE, cfg.evaluate.judge, "evaluate.judge"
    if cfg.judge is None:
        raise UserError(
            "evaluate.sets: the measures judge and pairwise, and accuracy with a judge, need an external model; "
            "add [evaluate.judge] with url and model to the card."
        )
    return "judge", cfg.judge, "judge"


def grader_of(cfg: Config, exam: Exam) -> Grader:
    """The rubric grader: the one set in `evaluate.grader`, or the game's own."""
    if cfg.evaluate.grader is not None:
        judge = judge_role(GRADER, "evaluate.grader", cfg.evaluate.grader)
        return Grader(judge, cfg.evaluate.prompts_folder) if exam.grader is None else replace(exam.grader, judge=judge)
    if exam.grader is None:
        raise UserError(
            "evaluate.sets: the measures rubric, points and rating need a grader, and this game has none; add "
            "[evaluate.grader] with temperature and max_tokens, and an endpoint unless the base is to grade."
        )
    return exam.grader


def check_prompts(cfg: Config, exam: Exam, rows: Mapping[str, Sequence[Row]]) -> None:
    """Fills in every prompt that the card's exams use, the game's with the first row of each set.

    Raises PromptError for a missing or invalid file.
    """
    for questions in rows.values():
        exam.prompt(questions[0], len)
    max_turns_of(cfg, exam)
    used = _used_measures(cfg, exam)
    if "judge" in used:
        judging.prompt(exam.prompts or cfg.evaluate.prompts_folder)
    if "pairwise" in used:
        pairwise.check_prompts(cfg, cfg.evaluate.prompts_folder)
    if used & {"rubric", "points"}:
        rubrics.check_prompts(cfg, grader_of(cfg, exam).prompts)
    if "rating" in used:
        rating.check_prompts(cfg, cfg.evaluate.prompts_folder)


def document_accuracy(cfg: Config) -> tuple[tuple[Measure, ...], dict[str, tuple[Measure, ...]]]:
    """(`Exam.accuracy`, `Exam.by_task`) of questions on documents, SPELL App. C.2: the rule or [evaluate.judge], if
    there is one; for multiple choice the letter alone.

    A judge that only grades in training is not asked: it would change the exam of cards that are to be compared.
    """
    judged: tuple[Measure, ...] = ("judge",) if cfg.evaluate.judge is not None else ()
    return ("cover-exact-match", *judged), {"math": ("numeric", *judged), "choice": ("choice",)}


# ------------------------------------------------------------------------------------------------------------ answering
def play(cfg: Config, exam: Exam, tools: Tools, rows: Sequence[Row], eval_set: EvalSet) -> list[Answer]:
    """The answers to the questions of a set, with the answers to one consecutive; not yet measured.

    Tells how many prompts are too long for the engine, which gives them no answers, and if a limit cut most replies.
    """
    conversations = [exam.prompt(row, tools.tokens) for row in rows]
    if too_long := sum(tools.prompt_tokens(messages) >= cfg.exam_length for messages in conversations):
        key = "rollout.max_length" if cfg.evaluate.max_length is None else "evaluate.max_length"
        tools.tell(
            f"{eval_set.name}: {too_long} of {len(rows)} prompts do not fit into {key} = {cfg.exam_length}; they get "
            "no answer, which counts as wrong. Raise it, or shorten them."
        )
    sampling = cfg.evaluate.sampling_of(eval_set, exam.role.agent.sampling)
    agent = replace(
        exam.role.with_reminder(cfg).agent,
        sampling=sampling,
        max_turns=max_turns_of(cfg, exam),
        max_prompt_tokens=None,
        tempered=True,
    )
    rollouts = [Rollout(f"{place}", messages) for place, messages in enumerate(conversations)]
    groups = tools.play("eval", rollouts, agent, eval_set.samples)
    if sentence := cut_replies(cfg, eval_set, sampling, [one for group in groups for one in group]):
        tools.tell(sentence)
    return [
        Answer(
            row=row,
            prompt=messages,
            completion=completion,
            text=exam.read(completion),
            searches=exam.role.count_searches(cfg, completion),
            sample=number,
            sampling=sampling,
        )
        for row, messages, group in zip(rows, conversations, groups, strict=True)
        for number, completion in enumerate(group)
    ]


def cut_replies(cfg: Config, eval_set: EvalSet, sampling: SamplingSection, replies: Sequence[Completion]) -> str | None:
    """A sentence if a limit cut more than half of these replies to a set's questions, else None."""
    said = [reply for reply in replies if reply.turns]
    cut = sum(bool(searching.cut_off(reply)) for reply in said)
    if 2 * cut <= len(said):
        return None
    of_card = "evaluate.max_tokens" if cfg.evaluate.max_tokens else "evaluate.max_tokens, by default as in training"
    length = "rollout.max_length" if cfg.evaluate.max_length is None else "evaluate.max_length"
    limits = {
        "the set's max_tokens" if eval_set.max_tokens else of_card: sampling.max_tokens,
        "evaluate.max_response_tokens": sampling.max_response_tokens,
        f"{length}, with the prompt": cfg.exam_length,
    }
    key = min(limits, key=lambda name: limits[name])
    return (
        f"{eval_set.name}: {cut} of {len(said)} replies were cut by a limit, and few of these can be right; the lowest "
        f"is {limits[key]} tokens ({key}): raise it, or train the model to end its replies."
    )


def chances(tools: Tools, policy: str, sampling: SamplingSection, cases: Sequence[tuple[Messages, str]]) -> list[float]:
    """The probability with which the policy gives each reply to its prompt, thoughts included, from log-probs.

    cases: (prompt, whole reply). Raises UserError for sampling that is greedy or leaves out tokens.
    """
    if not sampling.temperature or sampling.top_p < 1 or sampling.top_k:
        raise UserError(
            "an exam that reads probabilities needs a temperature above 0, top_p = 1 and top_k = 0; change them in "
            "[evaluate] or in its set."
        )
    before = [prompt.conversation() for prompt, _ in cases]
    after = [{"role": "assistant", "content": reply} for _, reply in cases]
    rows = [tools.encode([*asked, said], len(asked))[0] for asked, said in zip(before, after, strict=True)]
    scores = tools.score(policy, rows, temperature=sampling.temperature)
    return [math.exp(float(logprobs_T.sum())) for logprobs_T in scores]


def plain_exam(role: Role) -> Exam:
    """Questions as user messages; the answer is the whole last turn, without its thinking."""
    return Exam(
        role=role,
        prompt=lambda row, tokens: Messages(row["question"]),
        read=_last_turn,
        measures=("accuracy",),
        accuracy=("exact-match", "math"),
    )


def _last_turn(completion: Completion) -> str | None:
    return completion.turns[-1].content.strip() or None if completion.turns else None
