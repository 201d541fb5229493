"""Exams, shared by all games: answer the rows of an evaluation set and measure the answers.

A game's `Exam` defines its own part: the policy that answers, its prompts and searches, how an answer is parsed, and
the default measures. The rest comes from [evaluate] in the card.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from scope_jax.config import BY_RUBRIC, Config, EvalSet, JudgeSection, Measure
from scope_jax.data.schemas import Kind
from scope_jax.errors import UserError
from scope_jax.learner.types import transcript
from scope_jax.play import grading, pairwise, rating, rubrics, searching
from scope_jax.play.asking import Judge
from scope_jax.play.math_answers import Comparison
from scope_jax.play.measures import BY_TEXT, facts_stated
from scope_jax.play.rubrics import Grader
from scope_jax.play.searching import Search
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.play.turns import Respond
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

Row = Mapping[str, Any]
Record = dict[str, Any]
JUDGE, GRADER = (
    "exam judge",
    "exam grader",
)  # names of [evaluate.judge] and [evaluate.grader] among a run's external models
GRADED = frozenset(("rubric", "points", "rating"))  # measures for which a grader reads the answer
COUNTED = {  # by what a set is measured, and whether its game searches, it has some of these
    *("searches", "answer_tokens", "ungraded", "not_sampled"),
    *("judge_requests", "judge_unparsed", "pairwise_asked", "pairwise_unparsed"),
}
SHOWN = ("question", "answers", "rubric")  # fields that a record copies from its row


@dataclass(frozen=True)
class Exam:
    """The part of an exam that a game defines.

    policy: the policy that answers. prompt(row, tokens): the prompt for a row; `tokens` counts tokens, for prompts that
    truncate what they quote. within(limit): the same with at most `limit` tokens, for benchmarks that set their own
    limit; prompt_tokens: the card's own; None for both: the game truncates nothing. read: parses the answer of an
    episode, or None. measures: default measures of a set. accuracy: an answer is correct if one of these measures
    accepts it; they are tried in order, a judge only for answers that the others did not accept. by_task: the same for
    rows with this `task`. kind: the kind of rows with correct answers; rows graded by rubrics are always `tasks`. stop,
    max_turns, respond: settings of an episode; respond(search) is the responder of its turns.
    searches: counts the searches of an episode, None in a game that does not search. prompts: the folder with the
    game's own judge.txt, None: `evaluate.prompts`. grader: the game's rubric grader, None: as set in `evaluate.grader`.
    """

    policy: str
    prompt: Callable[[Row, Callable[[str], int]], Messages]
    read: Callable[[Completion], str | None]
    measures: tuple[Measure, ...]
    accuracy: tuple[Measure, ...] = ("exact-match",)
    by_task: Mapping[str, tuple[Measure, ...]] = field(default_factory=dict)
    kind: Kind = "questions"
    stop: tuple[str, ...] = ()
    max_turns: int = 1
    respond: Callable[[Search], Respond] | None = None
    searches: Callable[[Completion], int] | None = None
    prompts: str | None = None
    grader: Grader | None = None
    within: Callable[[int], Callable[[Row, Callable[[str], int]], Messages]] | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True)
class Answer:
    """One answer to a row; text: the parsed answer, None if there is none."""

    row: Row
    prompt: Messages
    completion: Completion
    text: str | None
    searches: int | None
    sample: int  # its number among the answers to its row


@dataclass
class Found:
    """The measurements of one answer: numbers, counts, and further fields of its record."""

    measures: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


# -------------------------------------------------------------------------------------------------------- requirements
def max_turns_of(cfg: Config, exam: Exam) -> int:
    """Most turns of an episode. Raises ValueError if the card has a number, but its game's exam has no searches."""
    if cfg.evaluate.max_turns is None:
        return exam.max_turns
    if exam.respond is None:
        raise UserError(
            f"evaluate.max_turns is {cfg.evaluate.max_turns}, but in exams of {cfg.system} nothing is searched, so an "
            "episode has one turn; remove it."
        )
    return cfg.evaluate.max_turns


def measures_of(exam: Exam, card: EvalSet) -> tuple[Measure, ...]:
    """The measures of a set: those it lists, or the game's."""
    return card.measures or exam.measures


def kind_of(exam: Exam, card: EvalSet) -> Kind:
    """The kind of a set's rows."""
    names = measures_of(exam, card)
    if "points" in names:
        return "marked"
    return "tasks" if any(name in BY_RUBRIC for name in names) else exam.kind


def _used_measures(cfg: Config, exam: Exam) -> set[str]:
    """The measures of all sets of the card, including those that `accuracy` consists of."""
    names = {name for card in cfg.evaluate.sets for name in measures_of(exam, card)}
    return names.union(exam.accuracy, *exam.by_task.values()) if "accuracy" in names else names


def metric_names(cfg: Config, exam: Exam) -> set[str]:
    """`<set>/<name>` of what the card's exams measure and count, apart from scores by dimension."""
    found = set()
    for card in cfg.evaluate.sets:
        names = {"score" if name == "rubric" else name for name in measures_of(exam, card)}
        found |= {f"{card.name}/{name}" for name in names | COUNTED}
    return found


def uses_base(cfg: Config, exam: Exam) -> bool:
    """True if the base model grades answers of the card's exams."""
    return graded(_used_measures(cfg, exam)) and not grader_of(cfg, exam).judge.outside


def graded(measures: Collection[str]) -> bool:
    """True if one of the measures needs the rubric grader."""
    return not GRADED.isdisjoint(measures)


def judges(cfg: Config, exam: Exam) -> dict[str, JudgeSection]:
    """The external models that the card's exams use, by name. Raises ValueError if the card lacks one of them."""
    used = _used_measures(cfg, exam)
    found = dict([judge_of(cfg)[:2]]) if used & {"judge", "pairwise"} else {}
    return found | grader_of(cfg, exam).judge.outside if graded(used) else found


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
        judge = Judge(GRADER, "evaluate.grader", cfg.evaluate.grader)
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
    for of_set in rows.values():
        exam.prompt(of_set[0], len)
    if exam.respond is not None:
        exam.respond(lambda queries: [])
    max_turns_of(cfg, exam)
    used = _used_measures(cfg, exam)
    if "judge" in used:
        grading.prompt(exam.prompts or cfg.evaluate.prompts_folder)
    if "pairwise" in used:
        pairwise.check_prompts(cfg, cfg.evaluate.prompts_folder)
    if used & {"rubric", "points"}:
        rubrics.check_prompts(cfg, grader_of(cfg, exam).prompts)
    if "rating" in used:
        rating.check_prompts(cfg, cfg.evaluate.prompts_folder)


# ------------------------------------------------------------------------------------------------------------ answering
def take(cfg: Config, exam: Exam, tools: Tools, rows: Sequence[Row], card: EvalSet) -> list[Record]:
    """One record per answer to the rows of a set; the answers to a row are consecutive, numbered by "sample".

    A record is meant to be read. Its "measures" are averaged, over the answers that have the measure; its "counts" are
    summed.
    """
    return measured(cfg, exam, tools, play(cfg, exam, tools, rows, card), measures_of(exam, card))


def play(cfg: Config, exam: Exam, tools: Tools, rows: Sequence[Row], card: EvalSet) -> list[Answer]:
    """The answers to the rows of a set, with the answers to a row consecutive; not yet measured.

    Tells how many prompts are too long for the engine, which gives them no answers.
    """
    conversations = [exam.prompt(row, tools.tokens) for row in rows]
    if too_long := sum(tools.prompt_tokens(messages) >= cfg.exam_length for messages in conversations):
        key = "rollout.max_length" if cfg.evaluate.max_length is None else "evaluate.max_length"
        tools.tell(
            f"{card.name}: {too_long} of {len(rows)} prompts do not fit into {key} = {cfg.exam_length}; they get no "
            "answer, which counts as wrong. Raise it, or shorten them."
        )
    agent = Agent(
        exam.policy,
        cfg.evaluate.sampling_of(card),
        max_turns=max_turns_of(cfg, exam),
        stop=exam.stop,
        respond=None if exam.respond is None else exam.respond(tools.search),
    )
    rollouts = [Rollout(f"{place}", messages) for place, messages in enumerate(conversations)]
    groups = tools.play("eval", rollouts, agent, card.samples)
    return [
        Answer(row, messages, completion, exam.read(completion), exam.searches and exam.searches(completion), number)
        for row, messages, group in zip(rows, conversations, groups, strict=True)
        for number, completion in enumerate(group)
    ]


# ------------------------------------------------------------------------------------------------------------ measuring
def measured(
    cfg: Config, exam: Exam, tools: Tools, answers: Sequence[Answer], measures: Sequence[Measure]
) -> list[Record]:
    """One record per answer, see `take`."""
    found = [Found() for _ in answers]
    marks = Marks(cfg, exam, tools, answers, found)
    every_place = range(len(answers))
    for name in measures:
        if name in ("rubric", "points"):
            grade(cfg, grader_of(cfg, exam), tools, answers, found, name)
        elif name == "rating":
            rate(cfg, grader_of(cfg, exam), tools, answers, found)
        elif name == "exact":
            for one, answer in zip(found, answers, strict=True):
                if (share := facts_stated(answer.text, answer.row["rubric"])) is not None:
                    one.measures[name] = share
        elif name == "pairwise":
            compare(cfg, tools, answers, found)
        elif name == "accuracy":
            for one, right in zip(found, marks.accuracy(), strict=True):
                one.fields["correct"] = right
                one.measures[name] = float(right)
        else:
            for one, value in zip(found, marks.of(name, every_place), strict=True):
                one.measures[name] = value
    for one, answer in zip(found, answers, strict=True):
        if not answer.completion.turns:
            one.counts["not_sampled"] = 1
        elif searching.cut_off(answer.completion):
            one.counts["cut_off"] = 1
    if graded(measures) or "pairwise" in measures:  # judges tend to favour long answers
        for one, answer in zip(found, answers, strict=True):
            one.measures["answer_tokens"] = float(tools.tokens(answer.text) if answer.text else 0)
    return [_record(answer, one) for answer, one in zip(answers, found, strict=True)]


def _record(answer: Answer, found: Found) -> Record:
    searches = {} if answer.searches is None else {"searches": float(answer.searches)}
    return {
        **{name: answer.row[name] for name in SHOWN if name in answer.row},
        "prediction": answer.text,
        **found.fields,
        "measures": found.measures | searches,
        "counts": found.counts,
        "text": {"prompt": answer.prompt.text, "turns": transcript(answer.completion)},
        "sample": answer.sample,
    }


class Marks:
    """Measures that compare answers with correct ones; the judge gets one request per answer, even if two measures
    use it."""

    def __init__(
        self, cfg: Config, exam: Exam, tools: Tools, answers: Sequence[Answer], found: Sequence[Found]
    ) -> None:
        self._cfg = cfg
        self._exam = exam
        self._tools = tools
        self._answers = answers
        self._found = found
        self._judged: dict[int, bool] = {}  # by index in `answers`

    def accuracy(self) -> list[bool]:
        """For each answer, whether one of the measures in `Exam.accuracy`, or in `by_task`, accepts it."""
        right = [False] * len(self._answers)
        exam = self._exam
        tried: list[tuple[Measure, ...]] = [
            exam.by_task.get(answer.row.get("task") or "", exam.accuracy) for answer in self._answers
        ]
        for turn in range(max(map(len, tried), default=0)):
            at_turn: list[Measure] = [names[turn] for names in tried if turn < len(names)]
            for name in dict.fromkeys(at_turn):
                open_places = [p for p, names in enumerate(tried) if not right[p] and name in names[turn : turn + 1]]
                for place, value in zip(open_places, self.of(name, open_places), strict=True):
                    right[place] = value == 1.0
        return right

    def of(self, name: Measure, places: Sequence[int]) -> list[float]:
        """One measure, 0 … 1, of the answers at these indices; 0 for an answer without text."""
        if name == "judge":
            self._ask([place for place in places if place not in self._judged])
            return [float(self._judged[place]) for place in places]
        if name == "math":
            return self._compare(places)
        compare = BY_TEXT[name]
        answers = [self._answers[place] for place in places]
        return [float(bool(one.text) and compare(one.text or "", one.row["answers"])) for one in answers]

    def _ask(self, places: Sequence[int]) -> None:
        name, _, key = judge_of(self._cfg)
        answers = [self._answers[place] for place in places]
        cases = [grading.Case(one.row["question"], one.text, tuple(one.row["answers"])) for one in answers]
        prompts = self._exam.prompts or self._cfg.evaluate.prompts_folder
        grades = grading.judge(prompts, partial(self._tools.judge, by=name), cases, key)
        self._judged |= dict(zip(places, grades.correct, strict=True))
        for one in self._found:
            one.counts.setdefault("judge_requests", 0)
            one.counts.setdefault("judge_unparsed", 0)
        for place, judgements in zip(places, grades.judgements, strict=True):
            self._found[place].counts["judge_requests"] += len(judgements)
            self._found[place].counts["judge_unparsed"] += sum(one.read is None for one in judgements)

    def _compare(self, places: Sequence[int]) -> list[float]:
        """Mathematical equality, and counts of the answers without a verdict."""
        answered = [place for place in places if self._answers[place].text]
        answers = [self._answers[place] for place in answered]
        verdicts = self._tools.compare_math([Comparison(one.text or "", tuple(one.row["answers"])) for one in answers])
        for place, verdict in zip(answered, verdicts, strict=True):
            counts = self._found[place].counts
            counts |= {"math_unreadable": int(verdict == "unreadable"), "math_timeouts": int(verdict == "timeout")}
        equal = {place for place, verdict in zip(answered, verdicts, strict=True) if verdict == "equal"}
        return [float(place in equal) for place in places]


def grade(
    cfg: Config, grader: Grader, tools: Tools, answers: Sequence[Answer], found: Sequence[Found], name: str = "rubric"
) -> None:
    """Adds `score`, SCOPE Eq. (1), or `points`, in which negative items count, except to an answer that the judge
    failed to grade (unless `ungraded = "zero"`), and `ungraded`, 1 for such an answer. With dimensions of criteria also
    `score_<dimension>`. Counts: criteria sent to the judge, and those without a verdict."""
    cases = [rubrics.Case(one.row["question"], one.text, rubrics.rubric_of(one.row)) for one in answers]
    results, _ = rubrics.grade(cfg, grader, tools, cases, signed=name == "points")
    for one, result, row in zip(found, results, (answer.row for answer in answers), strict=True):
        if result.score is not None or grader.ungraded == "zero":
            one.measures["score" if name == "rubric" else name] = result.score or 0.0
            if name == "rubric":
                one.measures |= _dimensions(row, result.verdicts, grader)
        one.measures["ungraded"] = float(result.score is None)
        one.counts |= {"judge_requests": len(result.verdicts), "judge_unparsed": result.verdicts.count(None)}
        one.fields["verdicts"] = list(result.verdicts)


def _dimensions(row: Row, verdicts: Sequence[bool | None], grader: Grader) -> dict[str, float]:
    """`score_<dimension>`: Eq. (1) over the criteria of each dimension (DeepResearch Bench); 0 without an answer."""
    found = {}
    for dimension in dict.fromkeys(item["dimension"] for item in row["rubric"] if "dimension" in item):
        places = [place for place, item in enumerate(row["rubric"]) if item.get("dimension") == dimension]
        weights = [row["rubric"][place]["weight"] for place in places]
        read = [verdicts[place] for place in places] if verdicts else [False] * len(places)
        score = rubrics.settled_score(read, weights, ungraded=grader.ungraded, min_graded=grader.min_graded)
        if score is not None:
            found[f"score_{dimension}"] = score
    return found


def rate(cfg: Config, grader: Grader, tools: Tools, answers: Sequence[Answer], found: Sequence[Found]) -> None:
    """Adds `rating`, see `rating.value`; none if the judge gave no mark. An answer that is missing has the lowest one.
    Counts: answers sent to the judge, and those without a mark."""
    cases = [rubrics.Case(one.row["question"], one.text, rubrics.rubric_of(one.row)) for one in answers]
    marks = rating.rate(cfg, cfg.evaluate.prompts_folder, grader.judge, tools, cases)
    for one, answer, mark in zip(found, answers, marks, strict=True):
        sent = bool(answer.text)
        if mark is not None:
            one.measures["rating"] = rating.value(mark)
        one.measures["ungraded"] = float(mark is None)
        one.counts |= {"judge_requests": int(sent), "judge_unparsed": int(sent and mark is None)}
        one.fields["mark"] = mark


def compare(cfg: Config, tools: Tools, answers: Sequence[Answer], found: Sequence[Found]) -> None:
    """Adds `pairwise`, the comparison with the row's first answer, see `pairwise.points`. Not added if one of the two
    votes is missing; a row without an answer loses. Counts: votes requested, and those that could not be parsed."""
    name, _, key = judge_of(cfg)
    pairs = [pairwise.Pair(one.row["question"], one.text, one.row["answers"][0]) for one in answers]
    votes = pairwise.compare(
        cfg, cfg.evaluate.prompts_folder, lambda requests, again: tools.judge(requests, by=name), pairs, key
    )
    for one, both in zip(found, votes, strict=True):
        value = 0.0 if both is None else pairwise.points(*both)
        if value is not None:
            one.measures["pairwise"] = value
        cast = both or ()
        one.counts |= {"pairwise_asked": len(cast), "pairwise_unparsed": cast.count(None)}
        one.fields["votes"] = list(cast)
