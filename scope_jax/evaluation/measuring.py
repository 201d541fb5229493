"""An evaluation set with the exam that answers it, and the measures of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from scope_jax.config import Config, EvalSet, Measure
from scope_jax.data import sources
from scope_jax.grading.math_answers import Comparison
from scope_jax.grading.measures import BY_TEXT, facts_stated
from scope_jax.learner.types import transcript
from scope_jax.play import exams, judging, pairwise, rating, rubrics, searching
from scope_jax.play.exams import Answer, Exam, Row
from scope_jax.play.rubrics import Grader
from scope_jax.play.tools import Tools

Record = dict[str, Any]
COPIED = ("question", "answers", "rubric")  # fields that a record has from its row


@dataclass(frozen=True)
class ExamSet:
    """An evaluation set, ready to be answered."""

    cfg: Config
    """The card, with the [evaluate] table that holds for the set."""
    exam: Exam
    """How its questions are answered."""
    eval_set: EvalSet
    """How they are sampled and measured."""
    rows: Sequence[Row]
    """The questions."""
    counts_questions: bool = False
    """Whether their number is a metric, `questions`: that of a suite, of which a part may be answered."""

    @classmethod
    def load(cls, cfg: Config, exam: Exam, eval_set: EvalSet, counts_questions: bool = False) -> ExamSet:
        """The set with its rows, checked. Raises UserError, PromptError or FileNotFoundError with a sentence for rows,
        prompts or judges that are missing or invalid."""
        rows = sources.load(exams.source_of(exam, eval_set))
        exams.check_prompts(cfg, exam, {eval_set.name: rows})
        exams.judges(cfg, exam)
        return cls(cfg, exam, eval_set, rows, counts_questions)

    @property
    def name(self) -> str:
        """Part of its metrics' names."""
        return self.eval_set.name

    def answers(self, tools: Tools) -> list[Answer]:
        """The answers to all questions, those to one consecutive."""
        return exams.play(self.cfg, self.exam, tools, self.rows, self.eval_set)

    def records(self, tools: Tools, answers: Sequence[Answer]) -> list[Record]:
        """One record per answer, to be read and averaged.

        Its "measures" are averaged, over the answers that have the measure; its "counts" are summed. The answers to a
        question are numbered by "sample".
        """
        measures = exams.measures_of(self.exam, self.eval_set)
        measurements = measure(self.cfg, self.exam, tools, answers, measures)
        return [_record(answer, measurement) for answer, measurement in zip(answers, measurements, strict=True)]


@dataclass
class Measurement:
    """What is measured of one answer."""

    measures: dict[str, float] = field(default_factory=dict)
    """Numbers, which are averaged."""
    counts: dict[str, int] = field(default_factory=dict)
    """Numbers, which are summed."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of its record."""


def measure(
    cfg: Config, exam: Exam, tools: Tools, answers: Sequence[Answer], measures: Sequence[str]
) -> list[Measurement]:
    """These measures of each answer, with what they count and add to its record."""
    measurements = [Measurement() for _ in answers]
    correctness = Correctness(cfg, exam, tools, answers, measurements)
    for name in measures:
        if name in ("rubric", "points"):
            grade(cfg, exams.grader_of(cfg, exam), tools, answers, measurements, name)
        elif name == "rating":
            rate(cfg, exams.grader_of(cfg, exam), tools, answers, measurements)
        elif name == "exact":
            for measurement, answer in zip(measurements, answers, strict=True):
                if (share := facts_stated(answer.text, answer.row["rubric"])) is not None:
                    measurement.measures[name] = share
        elif name == "pairwise":
            compare(cfg, tools, answers, measurements)
        elif name in exam.own:
            for measurement, value in zip(measurements, exam.own[name](answers, tools), strict=True):
                if value is not None:
                    measurement.measures[name] = float(value)
        elif name == "accuracy":
            for measurement, right in zip(measurements, correctness.accuracy(), strict=True):
                measurement.fields["correct"] = right
                measurement.measures[name] = float(right)
        else:
            for measurement, value in zip(
                measurements, correctness.of(cast(Measure, name), range(len(answers))), strict=True
            ):
                measurement.measures[name] = value
    for measurement, answer in zip(measurements, answers, strict=True):
        if not answer.completion.turns:
            measurement.counts["not_sampled"] = 1
        elif searching.cut_off(answer.completion):
            measurement.counts["cut_off"] = 1
    if exams.graded(measures) or "pairwise" in measures:  # judges tend to favour long answers
        for measurement, answer in zip(measurements, answers, strict=True):
            measurement.measures["answer_tokens"] = float(tools.tokens(answer.text) if answer.text else 0)
    return measurements


def _record(answer: Answer, measurement: Measurement) -> Record:
    searches = {} if answer.searches is None else {"searches": float(answer.searches)}
    return {
        **{name: answer.row[name] for name in COPIED if name in answer.row},
        "prediction": answer.text,
        **measurement.fields,
        "measures": measurement.measures | searches,
        "counts": measurement.counts,
        "text": {"prompt": answer.prompt.text, "turns": transcript(answer.completion)},
        "sample": answer.sample,
    }


class Correctness:
    """Measures that compare answers with correct ones; the judge gets one request per answer, even if two measures
    use it."""

    def __init__(
        self,
        cfg: Config,
        exam: Exam,
        tools: Tools,
        answers: Sequence[Answer],
        measurements: Sequence[Measurement],
    ) -> None:
        self._cfg = cfg
        self._exam = exam
        self._tools = tools
        self._answers = answers
        self._measurements = measurements  # for counts
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
        equal = BY_TEXT[name]
        answers = [self._answers[place] for place in places]
        return [float(bool(answer.text) and equal(answer.text or "", answer.row["answers"])) for answer in answers]

    def _ask(self, places: Sequence[int]) -> None:
        name, _, key = exams.judge_of(self._cfg)
        answers = [self._answers[place] for place in places]
        cases = [judging.Case(answer.row["question"], answer.text, tuple(answer.row["answers"])) for answer in answers]
        prompts = self._exam.prompts or self._cfg.evaluate.prompts_folder
        grades = judging.judge(prompts, partial(self._tools.judge, by=name), cases, key)
        self._judged |= dict(zip(places, grades.correct, strict=True))
        for measurement in self._measurements:
            measurement.counts.setdefault("judge_requests", 0)
            measurement.counts.setdefault("judge_unparsed", 0)
        for place, judgements in zip(places, grades.judgements, strict=True):
            counts = self._measurements[place].counts
            counts["judge_requests"] += len(judgements)
            counts["judge_unparsed"] += sum(judgement.read is None for judgement in judgements)

    def _compare(self, places: Sequence[int]) -> list[float]:
        """Mathematical equality, and counts of the answers without a verdict."""
        with_text = [place for place in places if self._answers[place].text]
        answers = [self._answers[place] for place in with_text]
        verdicts = self._tools.compare_math(
            [Comparison(answer.text or "", tuple(answer.row["answers"])) for answer in answers]
        )
        for place, verdict in zip(with_text, verdicts, strict=True):
            counts = self._measurements[place].counts
            counts |= {"math_unreadable": int(verdict == "unreadable"), "math_timeouts": int(verdict == "timeout")}
        equal = {place for place, verdict in zip(with_text, verdicts, strict=True) if verdict == "equal"}
        return [float(place in equal) for place in places]


def grade(
    cfg: Config,
    grader: Grader,
    tools: Tools,
    answers: Sequence[Answer],
    measurements: Sequence[Measurement],
    name: Measure,
) -> None:
    """Adds `score`, SCOPE Eq. (1), for "rubric", or `points`, in which negative items count, except to an answer that
    the grader failed on (unless `ungraded = "zero"`), and `ungraded`, 1 for such an answer. With dimensions of criteria
    also `score_<dimension>`. Counts: criteria sent to the grader, and those without a verdict."""
    cases = [
        rubrics.RubricCase(answer.row["question"], answer.text, rubrics.rubric_of(answer.row)) for answer in answers
    ]
    results, _ = rubrics.grade(cfg, grader, tools, cases, signed=name == "points")
    for measurement, result, answer in zip(measurements, results, answers, strict=True):
        if result.score is not None or grader.ungraded == "zero":
            measurement.measures["score" if name == "rubric" else name] = result.score or 0.0
            if name == "rubric":
                measurement.measures |= _dimensions(answer.row, result.verdicts, grader)
        measurement.measures["ungraded"] = float(result.score is None)
        measurement.counts |= {"judge_requests": len(result.verdicts), "judge_unparsed": result.verdicts.count(None)}
        measurement.fields["verdicts"] = list(result.verdicts)


def _dimensions(row: Row, verdicts: Sequence[bool | None], grader: Grader) -> dict[str, float]:
    """`score_<dimension>`: Eq. (1) over the criteria of each dimension (DeepResearch Bench); 0 without an answer."""
    scores = {}
    for dimension in dict.fromkeys(item["dimension"] for item in row["rubric"] if "dimension" in item):
        places = [place for place, item in enumerate(row["rubric"]) if item.get("dimension") == dimension]
        weights = [row["rubric"][place]["weight"] for place in places]
        read = [verdicts[place] for place in places] if verdicts else [False] * len(places)
        score = rubrics.settled_score(read, weights, ungraded=grader.ungraded, min_graded=grader.min_graded)
        if score is not None:
            scores[f"score_{dimension}"] = score
    return scores


def rate(
    cfg: Config, grader: Grader, tools: Tools, answers: Sequence[Answer], measurements: Sequence[Measurement]
) -> None:
    """Adds `rating`, see `rating.value`; none if the grader gave no mark. An answer that is missing has the lowest one.
    Counts: answers sent to the grader, and those without a mark."""
    cases = [
        rubrics.RubricCase(answer.row["question"], answer.text, rubrics.rubric_of(answer.row)) for answer in answers
    ]
    marks = rating.rate(cfg, cfg.evaluate.prompts_folder, grader.judge, tools, cases)
    for measurement, answer, mark in zip(measurements, answers, marks, strict=True):
        sent = bool(answer.text)
        if mark is not None:
            measurement.measures["rating"] = rating.value(mark)
        measurement.measures["ungraded"] = float(mark is None)
        measurement.counts |= {"judge_requests": int(sent), "judge_unparsed": int(sent and mark is None)}
        measurement.fields["mark"] = mark


def compare(cfg: Config, tools: Tools, answers: Sequence[Answer], measurements: Sequence[Measurement]) -> None:
    """Adds `pairwise`, the comparison with the row's first answer, see `pairwise.value`. Not added if one of the two
    votes is missing; a row without an answer loses. Counts: votes requested, and those that could not be parsed."""
    name, _, key = exams.judge_of(cfg)
    pairs = [pairwise.AnswerPair(answer.row["question"], answer.text, answer.row["answers"][0]) for answer in answers]
    votes = pairwise.compare(
        cfg, cfg.evaluate.prompts_folder, lambda requests, again: tools.judge(requests, by=name), pairs, key
    )
    for measurement, both in zip(measurements, votes, strict=True):
        value = 0.0 if both is None else pairwise.value(*both)
        if value is not None:
            measurement.measures["pairwise"] = value
        cast = both or ()
        measurement.counts |= {"pairwise_asked": len(cast), "pairwise_unparsed": cast.count(None)}
        measurement.fields["votes"] = list(cast)
