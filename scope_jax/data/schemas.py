"""The fields of each kind of data and their accepted column names: the only place where rows are validated.

A schema takes a row of a file and returns it in the form the games use, or raises a DataError that names the location:

    answers     {"answers": [..], "searches": n or None}      for proposers, which see the first answer
    questions   {"question": "…", "answers": [..]}            for solvers, with all correct answers
    tasks       {"question": "…", "rubric": [{"criterion": "…", "weight": w, "priority": "…"}, ..]}
    marked      the same, with the items that take points off: their weights are negative
    choices     {"question": "…", "answers": ["B"], "options": [..]}    multiple choice; the answer is a letter
    readings    {"question": "…", "answers": [..], "options": [..], "task": "…" or None, "context": "…"}
                a question about the given context, with the texts of its options if it has any
    queries     {"question": "…"}                             to report on, without an answer
    documents   {"id": "…", "title": "…", "text": "…"}        validated by retrieval.corpus
    clusters    {"id": "…", "family": "…" or None, "documents": [a document, ..]}    related documents
    rows        all columns as they are, for a game that reads its own
    problems    a prompt with the answers by which replies are graded, see `problems`
    conversations, preferences    given answers, see `conversations`

The card may set the columns (`columns`); otherwise the names used by the published data sets are recognised
(docs/data.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from scope_jax.data.conversations import conversations, preferences
from scope_jax.data.corpus import DOCUMENT, passage
from scope_jax.data.problems import problems
from scope_jax.data.rows import DataError, Row, optional, required, text_of
from scope_jax.text.strict_json import kind_of, repeated

Kind = Literal[
    "answers",
    "questions",
    "choices",
    "tasks",
    "marked",
    "readings",
    "queries",
    "documents",
    "clusters",
    "problems",
    "conversations",
    "preferences",
    "rows",
]
Columns = Mapping[str, str]  # field → column, as set in the card

QUESTION = ("question", "problem", "query", "prompt")
ANSWERS = ("answers", "golden_answers", "answer", "ground_truth")
ALIASES = ("aliases", "answer_aliases")
SEARCHES = ("search_turns",)
TASK = ("messages", "question", "problem", "query", "prompt")
RUBRIC = ("rubric", "rubrics")
CONTEXT = ("context", "documents")
OPTIONS = ("options", "choices")
OPTION_COLUMNS = ("choice_A", "choice_B", "choice_C", "choice_D")  # LongBench v2
TASKS = ("qa", "math", "choice")  # of readings
LARGEST = 1e12  # bound of all counts and weights

FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "answers": ("answers", "aliases", "searches"),
    "questions": ("question", "answers", "aliases"),
    "choices": ("question", "answers", "options"),
    "tasks": ("question", "rubric"),
    "marked": ("question", "rubric"),
    "readings": ("question", "answers", "aliases", "options", "task", "context"),
    "queries": ("question",),
    "documents": tuple(DOCUMENT),
    "clusters": ("id", "family", "documents"),
    "rows": (),
    "problems": ("prompt", "answers"),
    "conversations": ("messages", "prompt", "completion", "system", "tools"),
    "preferences": ("prompt", "chosen", "rejected", "system", "tools"),
}


def answers(row: Row, where: str, columns: Columns) -> Row:
    """Ground-truth answers, and how many searches a question about them should need (None if not given)."""
    column, searches = optional(row, where, "searches", SEARCHES, columns)
    if searches is not None:
        searches = _count(searches, where, column)
    return {"answers": _golds(row, where, columns), "searches": searches}


def questions(row: Row, where: str, columns: Columns) -> Row:
    """A question and all its correct answers."""
    column, question = required(row, where, "question", QUESTION, columns)
    return {"question": text_of(question, where, column), "answers": _golds(row, where, columns)}


def queries(row: Row, where: str, columns: Columns) -> Row:
    """What a user asks, to be reported on; a conversation is written out with its roles."""
    column, query = required(row, where, "question", TASK, columns)
    text = _conversation(query, where, column) if isinstance(query, list) else text_of(query, where, column)
    return {"question": text}


def tasks(row: Row, where: str, columns: Columns) -> Row:
    """A task and the rubric for its answer.

    An item of a rubric is a criterion with a weight: `weight` or `points` (HealthBench), 1 without either; items
    without a positive weight are left out, as w_k ≥ 0 (SCOPE Eq. (1)). An `explanation` is appended to its criterion; a
    `dimension` multiplies the weight by its share in the row's `dimension_weight` (DeepResearch Bench). A criterion
    that is a fact may have `fact`, [statement, value], and exams then check by an exact rule whether an answer states
    it. A conversation in place of a question is converted to text with role labels.
    """
    marked_row = marked(row, where, columns)
    rubric = [item for item in marked_row["rubric"] if item["weight"] > 0]
    return marked_row | {"rubric": rubric}


def marked(row: Row, where: str, columns: Columns) -> Row:
    """A task and the rubric for its answer as in `tasks`, with the items of negative weight, which describe faults."""
    column, task = required(row, where, "question", TASK, columns)
    question = _conversation(task, where, column) if isinstance(task, list) else text_of(task, where, column)
    column, items = required(row, where, "rubric", RUBRIC, columns)
    if not isinstance(items, list):
        raise DataError(f"{where}: `{column}` holds {kind_of(items)}, not a list of criteria; write a list.")
    shares = row.get("dimension_weight") or {}  # Parquet files have null for a missing value
    if not isinstance(shares, dict):
        raise DataError(
            f"{where}: `dimension_weight` holds {kind_of(shares)}, not an object; write one share per dimension."
        )
    rubric = [_criterion(item, where, f"{column}[{place}]", shares) for place, item in enumerate(items)]
    if not any(item["weight"] > 0 for item in rubric):
        raise DataError(f"{where}: no criterion of `{column}` has a positive weight; fix or remove the row.")
    return {"question": question, "rubric": rubric}


def readings(row: Row, where: str, columns: Columns) -> Row:
    """A question about a context, all its correct answers, and the options if it is multiple choice (else []).

    The context may be a string, or a list of documents or strings, which are joined by blank lines. With the task
    "choice" the answers are letters.
    """
    question = questions(
        row, where, {field: column for field, column in columns.items() if field in FIELDS["questions"]}
    )
    column, context = required(row, where, "context", CONTEXT, columns)
    parts = context if isinstance(context, list) else [context]
    texts = [
        _part(part, where, f"{column}[{place}]" if parts is context else column) for place, part in enumerate(parts)
    ]
    texts_of_options = _options(row, where, columns)
    column, task = optional(row, where, "task", ("task",), columns)
    task = None if task is None else text_of(task, where, column)
    if task not in (None, *TASKS):
        raise DataError(
            f"{where}: `{column}` is {task!r}; write {', '.join(TASKS[:-1])} or {TASKS[-1]}, or leave it out."
        )
    if task == "choice":
        _letters(question["answers"], texts_of_options, where, optional(row, where, "answers", ANSWERS, columns)[0])
    return question | {
        "options": texts_of_options,
        "task": task,
        "context": "\n\n".join(texts),
    }


def choices(row: Row, where: str, columns: Columns) -> Row:
    """A multiple-choice question: the texts of its options ([] if the question has them), the letter of the answer."""
    column, question = required(row, where, "question", QUESTION, columns)
    options = _options(row, where, columns)
    answer, golds = required(row, where, "answers", ANSWERS, columns)
    letters = _letters(_texts(answer, golds, where), options, where, answer)
    return {"question": text_of(question, where, column), "answers": letters, "options": options}


def _letters(texts: list[str], options: list[str], where: str, column: str) -> list[str]:
    """The letters that answers name, which must be those of options."""
    letters = [text.strip().strip("()").upper() for text in texts]
    known = [chr(ord("A") + place) for place in range(len(options) or 26)]
    for letter in letters:
        if letter not in known:
            raise DataError(f"{where}: `{column}` holds {letter[:20]!r}; write a letter from A to {known[-1]}.")
    return letters


def _options(row: Row, where: str, columns: Columns) -> list[str]:
    """The texts of the options, [] if there are none."""
    column, options = optional(row, where, "options", OPTIONS, columns)
    if options is None and all(row.get(name) is not None for name in OPTION_COLUMNS):
        column, options = OPTION_COLUMNS[0], [row[name] for name in OPTION_COLUMNS]
    if isinstance(options, dict):
        options = [options[letter] for letter in sorted(options)]
    if not isinstance(options, list | None):
        raise DataError(f"{where}: `{column}` holds {kind_of(options)}, not the options; write a list of texts.")
    return [text_of(option, where, column) for option in options or ()]


def _part(part: Any, where: str, column: str) -> str:
    if not isinstance(part, dict):
        return text_of(part, where, column)
    document = passage(part, f"{where}, {column}", {}, 0)
    return f"Title: {document['title']}\n{document['text']}" if document["title"] else document["text"]


def clusters(row: Row, where: str, columns: Columns) -> Row:
    """Related documents with distinct ids, and the family of tasks that the cluster is meant for."""
    column, key = required(row, where, "id", ("id",), columns)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise DataError(f"{where}: `{column}` holds {kind_of(key)}; an id is a string or a whole number.")
    key = text_of(str(key), where, column)
    column, family = optional(row, where, "family", ("family",), columns)
    family = None if family is None else text_of(family, where, column)
    column, items = required(row, where, "documents", ("documents",), columns)
    if not isinstance(items, list):
        raise DataError(f"{where}: `{column}` holds {kind_of(items)}, not a list of documents; write a list.")
    documents = []
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            raise DataError(f"{where}: `{column}[{place}]` holds {kind_of(item)}, not a document; write an object.")
        documents.append(passage(item, f"{where}, {column}[{place}]", {}, place))
    if twice := repeated(document["id"] for document in documents):
        raise DataError(f"{where}: two of its documents have the id {twice!r}; make ids unique.")
    return {"id": key, "family": family, "documents": documents}


def rows(row: Row, where: str, columns: Columns) -> Row:
    """A row as it is."""
    return dict(row)


SCHEMAS: Mapping[Kind, Callable[[Row, str, Columns], Row]] = {
    "answers": answers,
    "questions": questions,
    "choices": choices,
    "tasks": tasks,
    "marked": marked,
    "readings": readings,
    "queries": queries,
    "clusters": clusters,
    "rows": rows,
    "problems": problems,
    "conversations": conversations,
    "preferences": preferences,
}


# --------------------------------------------------------------------------------------------------------------- parts
def _golds(row: Row, where: str, columns: Columns) -> list[str]:
    """All accepted answers without duplicates: a string is one answer, aliases follow."""
    golds = _texts(*required(row, where, "answers", ANSWERS, columns), where)
    column, aliases = optional(row, where, "aliases", ALIASES, columns)
    return list(dict.fromkeys(golds if aliases is None else golds + _texts(column, aliases, where)))


def _texts(column: str, value: Any, where: str) -> list[str]:
    if isinstance(value, dict):
        raise DataError(
            f"{where}: `{column}` holds an object, not answers; name the field inside it in the card, "
            f'such as "{column}.{next(iter(value), "value")}".'
        )
    if not isinstance(value, list):
        return [text_of(value, where, column)]
    return [text_of(item, where, f"{column}[{place}]") for place, item in enumerate(value)]


def _number(value: Any, where: str, column: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: `{column}` holds {kind_of(value)}, not a number; write one.")
    if not abs(value) < LARGEST:  # also rejects NaN, which a Parquet file may contain
        raise DataError(f"{where}: `{column}` holds a number that is not finite or far too large; write another one.")
    return value


def _count(value: Any, where: str, column: str) -> int:
    number = _number(value, where, column)
    if number < 1 or number != int(number):  # Parquet files have 3.0 if other rows have null
        raise DataError(f"{where}: `{column}` holds {value}, not a number of searches; write 1, 2, 3 or more.")
    return int(number)


def _conversation(messages: list[Any], where: str, column: str) -> str:
    lines = []
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or "role" not in message or "content" not in message:
            raise DataError(f"{where}: `{column}[{place}]` is not a message; write an object with role and content.")
        lines.append(
            f"{text_of(message['role'], where, f'{column}[{place}].role')}: "
            f"{text_of(message['content'], where, f'{column}[{place}].content')}"
        )
    return "\n\n".join(lines)


def _criterion(item: Any, where: str, column: str, shares: Row) -> Row:
    if not isinstance(item, dict):
        raise DataError(
            f"{where}: `{column}` holds {kind_of(item)}, not a criterion; write an object with `criterion`."
        )
    text = text_of(item.get("criterion"), where, f"{column}.criterion").strip()
    if item.get("explanation"):
        text += ": " + text_of(item["explanation"], where, f"{column}.explanation").strip()
    name, weight = optional(item, where, "weight", ("weight", "points"), {})
    weight = 1.0 if weight is None else _number(weight, where, f"{column}.{name}")
    dimension = item.get("dimension")
    if dimension is not None:
        dimension = text_of(dimension, where, f"{column}.dimension")
        if shares.get(dimension) is not None:
            weight *= _number(shares[dimension], where, f"dimension_weight.{dimension}")
    priority = item.get("priority") or ""
    if priority:
        text_of(priority, where, f"{column}.priority")
    criterion = {"criterion": text, "weight": float(weight), "priority": priority}
    if dimension is not None:
        criterion["dimension"] = dimension
    if item.get("fact") is not None:
        criterion["fact"] = _fact(item["fact"], where, f"{column}.fact")
    return criterion


def _fact(fact: Any, where: str, column: str) -> list[str]:
    if not isinstance(fact, list) or len(fact) != 2:
        raise DataError(
            f"{where}: `{column}` holds {kind_of(fact)}, not a fact; write a statement and its value, "
            'such as ["The capital of France is", "Paris"].'
        )
    texts = [text_of(part, where, f"{column}[{place}]").strip() for place, part in enumerate(fact)]
    if not all(texts):
        raise DataError(f"{where}: `{column}` has an empty part; write a statement and its value.")
    return texts
