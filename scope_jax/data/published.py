"""How rows of published data sets become rows of ours: recipes, as data in published.toml, one per file that cards and
exams name.

A recipe says where the data set is on the hub, the kind of its rows, and which column of a published row is which field
of ours. A few data sets have rows of another form, which a function reads (`READERS`). Both get the row as it is, and
raise DataError, with the place, for a row that lacks what it needs; the schema of the kind checks the rest.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from scope_jax.data.corpus import DOCUMENT, passage
from scope_jax.data.rows import DataError, Row, optional, required
from scope_jax.data.schemas import Kind
from scope_jax.text.strict_json import kind_of

FILE = Path(__file__).with_name("published.toml")
Make = Callable[[Row, str], Row]


# ---------------------------------------------------------------------------------------------------------- conversions
def _texts(value: Any, where: str, name: str) -> list[str]:
    """One text or number, or a list of them, as texts."""
    texts = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise DataError(f"{where}: `{name}` holds {kind_of(item)}, not text; fix or remove the row.")
        texts.append(item if isinstance(item, str) else repr(item))
    return texts


def _integers(value: Any, where: str, name: str) -> list[str]:
    """Integers, also where the file writes 033 or 27.0."""
    return [_integer(answer, where) for answer in _texts(value, where, name)]


def _integer(answer: str, where: str) -> str:
    try:
        number = float(answer)
    except ValueError:
        raise DataError(f"{where}: the answer {answer[:40]!r} is not a number; correct or remove the row.") from None
    return str(int(number)) if number.is_integer() else answer


def _after_hashes(solution: Any, where: str, name: str) -> list[str]:
    """The answer follows "####" at the end of a solution, with commas in large numbers."""
    if not isinstance(solution, str) or "####" not in solution:
        raise DataError(f'{where}: the answer has no "####" before the result; fix or remove the row.')
    return [solution.rpartition("####")[2].strip().replace(",", "")]


def _forms(value: Any, where: str, name: str) -> list[str]:
    """As the scorer of BIG-Bench Extra Hard has it: also without a letter's brackets, or spaces after commas."""
    forms = [
        form
        for target in _texts(value, where, name)
        for form in (target, re.sub(r"^\((\w)\)$", r"\1", target), target.replace(", ", ","))
    ]
    return list(dict.fromkeys(forms))


def _options(value: Any, where: str, name: str) -> list[Any]:
    return [option for option in value if option != "N/A"]


def _rubric(items: Any, where: str, name: str) -> list[Any]:
    """Criteria from texts, or from objects that name them in one of several ways."""
    if not isinstance(items, list):
        raise DataError(f"{where}: `{name}` holds {kind_of(items)}, not a list; fix or remove the row.")
    return [_criterion(item) for item in items]


def _criterion(item: Any) -> Any:
    if isinstance(item, str):
        return {"criterion": item}
    if not isinstance(item, Mapping):
        return item  # the schema says what is wrong with it
    text = next((item[name] for name in ("criterion", "rubric_item", "rubric", "description") if item.get(name)), None)
    weight = next((item[name] for name in ("weight", "points") if item.get(name) is not None), 1.0)
    return {"criterion": text, "weight": weight}


def _dimensions(value: Any, where: str, name: str) -> list[Row]:
    """Criteria by dimension, or a list of criteria that name theirs."""
    if isinstance(value, Mapping):
        value = [{"dimension": dimension, **item} for dimension, items in value.items() for item in items]
    fields = ("dimension", "criterion", "explanation", "weight")
    return [{field: item[field] for field in fields if field in item} for item in value]


def _last_message(value: Any, where: str, name: str) -> Any:
    """The content of a conversation's last message; a text as it is."""
    if not isinstance(value, list):
        return value
    return value[-1].get("content") if isinstance(value[-1], Mapping) else None


CONVERTERS: Mapping[str, Callable[[Any, str, str], Any]] = {
    "": lambda value, where, name: value,
    "id": lambda value, where, name: str(value),
    "texts": _texts,
    "one text": lambda value, where, name: [", ".join(_texts(value, where, name))],
    "integers": _integers,
    "after hashes": _after_hashes,
    "forms": _forms,
    "options": _options,
    "rubric": _rubric,
    "dimensions": _dimensions,
    "last message": _last_message,
}


# -------------------------------------------------------------------------------------------------------------- recipes
class PublishedField(BaseModel):
    """Where a field of our row is in a published one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: tuple[str, ...] = ()
    """The first that is neither null nor [] has it; a dot reaches into objects."""
    each: tuple[str, ...] = ()
    """In place of columns: each has one item of a list."""
    more: tuple[str, ...] = ()
    """The first of these that has something: its items are appended, and each is kept once."""
    convert: str = ""
    """One of CONVERTERS."""
    required: bool = True
    """A row without it is refused; otherwise the row of ours lacks it, too."""

    def value(self, row: Row, where: str, name: str) -> Any:
        """The field's value; None if the row has none and needs none. Raises DataError."""
        if self.each:
            found = [_of(row, where, name, column) for column in self.each]
        elif self.required:
            found = _of(row, where, name, *self.columns)
        else:
            nothing = (None, "") if self.convert == "id" else (None,)
            found = next((row[column] for column in self.columns if row.get(column) not in nothing), None)
            if found is None:
                return None
        convert = CONVERTERS[self.convert]
        value = convert(found, where, name)
        if not self.more:
            return value
        more = next((row[column] for column in self.more if row.get(column)), [])
        return list(dict.fromkeys([*value, *convert(more, where, name)]))


class Recipe(BaseModel):
    """How the rows of one published data set become ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    """The data set and the format of its rows."""
    kind: Kind
    """The schema of our rows."""
    fields: Mapping[str, PublishedField] = {}
    """Of our row, by name: those of its format."""
    constants: Mapping[str, str] = {}
    """Fields that all rows have alike."""
    read: str | None = None
    """One of READERS, in place of fields."""
    hub: str | None = None
    """Its name on the hub; None: only from files."""
    config: str | None = None
    """Its configuration there."""
    split: str = "test"
    """Its split there."""
    baseline: bool = False
    """The rows need a second file, with the answers of a baseline, see `joined`."""
    once: bool = False
    """Rows of ours that are equal to an earlier one are left out."""

    def make(self, row: Row, where: str) -> Row:
        """The row of ours, {} for one of another part of the data set. Raises DataError."""
        if self.read is not None:
            return READERS[self.read](row, where)
        values = {name: field.value(row, where, name) for name, field in self.fields.items()}
        return {name: value for name, value in values.items() if value is not None} | dict(self.constants)


class PublishedFile(BaseModel):
    """published.toml."""

    model_config = ConfigDict(extra="forbid")

    formats: Mapping[str, Mapping[str, PublishedField]]
    recipes: Mapping[str, Mapping[str, Any]]

    @cached_property
    def by_name(self) -> Mapping[str, Recipe]:
        return {name: self._recipe(dict(table)) for name, table in self.recipes.items()}

    def _recipe(self, table: dict[str, Any]) -> Recipe:
        format = table.pop("format", None)
        return Recipe(**table, fields={} if format is None else self.formats[format])


def _of(row: Row, where: str, name: str, *columns: str) -> Any:
    """The first of these columns that is neither null nor []; a dot reaches into nested objects."""
    for column in columns:
        value: Any = row
        for part in column.split(".") if column not in row else (column,):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value not in (None, []):
            return value
    return required(row, where, name, columns, {})[1]  # raises


# -------------------------------------------------------------------------------------------------- rows of other forms
def gpqa(row: Row, where: str) -> Row:
    """GPQA: one correct and three incorrect answers, put into an order by a hash of the question."""
    asked = _of(row, where, "question", "Question", "question")
    right = str(_of(row, where, "answers", "Correct Answer")).strip()
    wrong = [str(_of(row, where, "options", f"Incorrect Answer {place}")).strip() for place in (1, 2, 3)]

    def place(option: str) -> str:
        return hashlib.sha256(f"{asked}\n{option}".encode()).hexdigest()

    ordered = sorted([right, *wrong], key=place)
    return {"question": asked, "options": ordered, "answers": [chr(ord("A") + ordered.index(right))]}


def wildbench(row: Row, where: str) -> Row:
    """WildBench v2: a conversation, and the checklist for the grader."""
    turns = _of(row, where, "question", "conversation_input")
    talk = [{"role": turn.get("role"), "content": turn.get("content")} for turn in turns]
    asked = {"question": talk[0]["content"]} if len(talk) == 1 else {"messages": talk}
    checks = [_criterion(item) for item in _of(row, where, "checklist", "checklist")]
    name = next((str(row[column]) for column in ("session_id", "id") if row.get(column) not in (None, "")), None)
    return ({} if name is None else {"id": name}) | asked | {"rubric": checks}


def arena_hard(row: Row, where: str) -> Row:
    """Arena-Hard v2.0: its prompts of creative writing, {} for others; the baseline's answer is in the second file."""
    if row.get("category") not in (None, "creative_writing"):
        return {}
    return {
        "id": str(_of(row, where, "id", "uid", "id")),
        "question": _of(row, where, "question", "prompt", "question"),
    }


def joined(baseline: Sequence[tuple[str, Row]], make: Make) -> Make:
    """`make` with the answers of a baseline: rows with uid, and messages whose last content (or its `answer`) it is."""
    answers = {}
    for where, row in baseline:
        messages = _of(row, where, "answers", "messages")
        last = messages[-1] if isinstance(messages, list) else None
        content = last.get("content") if isinstance(last, Mapping) else None
        answer = content.get("answer") if isinstance(content, Mapping) else content
        if not isinstance(answer, str):
            raise DataError(f"{where}: `messages` is not a list that ends with an answer; give a file of answers.")
        answers[str(_of(row, where, "id", "uid", "id"))] = answer

    def with_answer(row: Row, where: str) -> Row:
        ours = make(row, where)
        if ours and ours["id"] not in answers:
            raise DataError(f"{where}: the baseline has no answer to {ours['id']}; give the file of all its answers.")
        return ours | {"answers": [answers[ours["id"]]]} if ours else ours

    return with_answer


def document(row: Row, where: str) -> Row:
    """Any corpus: text with an optional title, or Search-R1's contents with the title in the first line.

    Raises DataError for a row without a text, and says so if it is a question with an answer (NaturalReasoning).
    """
    if "question" in row and not {"text", "contents"} & row.keys():
        raise DataError(
            f"{where}: is a question, not a document; give pages with a `text` (the rows of NaturalReasoning are "
            "questions with reference answers: take pages of DCLM, which they were written from)."
        )
    texts = passage(row, where, {}, 0)
    _, given = optional(row, where, "id", DOCUMENT["id"], {})
    return {name: value for name, value in texts.items() if name != "id" or given is not None}


def spell_clusters(row: Row, where: str) -> Row:
    """SPELL's published training sets: `paragraphs` of a report, for math, or of related pages, which the code divides
    between qa and choice at random, and this by a hash of the id."""
    source, key = str(_of(row, where, "family", "data_source")), str(_of(row, where, "id", "question_id"))
    even = hashlib.sha256(key.encode()).digest()[0] % 2 == 0
    family = "math" if source.startswith("docmath") else ("qa" if even else "choice")
    paragraphs = _of(row, where, "documents", "paragraphs")
    if not isinstance(paragraphs, list):
        raise DataError(f"{where}: `paragraphs` is {kind_of(paragraphs)}, not a list; fix or remove the row.")
    texts = [text for text in _texts(paragraphs, where, "paragraph") if text.strip()]
    documents = [{"id": str(place), "text": text} for place, text in enumerate(texts)]
    return {"id": f"{source}-{key}", "family": family, "documents": documents}


def query(row: Row, where: str) -> Row:
    """Any requests of users: a question, or a Reddit post's title and text."""
    asked = row.get("question") or row.get("query") or row.get("prompt")
    if asked is None:
        asked = "\n\n".join(part for part in (row.get("title"), row.get("selftext")) if part)
    return {"question": asked}


def squad(row: Row, where: str) -> Row:
    """SQuAD 1.1: a passage to read and a question about it, with a demonstration (`completion`) for `sft`."""
    answers = _texts(_of(row, where, "answers", "answers.text"), where, "answers")
    title, context, question = (_of(row, where, name, name) for name in ("title", "context", "question"))
    return {
        "id": str(_of(row, where, "id", "id")),
        "prompt": reading_prompt(f"{title.replace('_', ' ')}\n{context}", question),
        "completion": answers[0],
        "answers": list(dict.fromkeys(answers)),
    }


def squad_passage(row: Row, where: str) -> Row:
    """SQuAD 1.1: the passage alone, which several questions share; its id is a hash of its text."""
    title, context = (_of(row, where, name, name) for name in ("title", "context"))
    title = title.replace("_", " ")
    return {"id": hashlib.sha256(f"{title}\n{context}".encode()).hexdigest()[:16], "title": title, "text": context}


def reading_prompt(text: str, question: str) -> str:
    """A request to answer a question from a text."""
    return f"{text}\n\nQuestion: {question}\nAnswer with a few words from the text, nothing else."


def prompts(row: Row, where: str) -> Row:
    """Any prompts with rubrics, such as those of Dr. Tulu for SCOPE's baseline."""
    return RECIPES["researchqa" if "messages" not in row else "healthbench"].make(row, where)


READERS: Mapping[str, Make] = {
    "gpqa": gpqa,
    "wildbench": wildbench,
    "arena hard": arena_hard,
    "document": document,
    "spell clusters": spell_clusters,
    "squad": squad,
    "squad passage": squad_passage,
    "query": query,
    "prompts": prompts,
}
RECIPES = PublishedFile.model_validate(tomllib.loads(FILE.read_text(encoding="utf-8"))).by_name
