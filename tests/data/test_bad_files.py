"""Bad data files: none is accepted, none ends in a traceback; the error names the file and the line or row.

Every case is a bad file, how it is read, the place that the error must name (after the file's path) and some words of
the error.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets.config
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from scope_jax import errors
from scope_jax.cli import app
from scope_jax.data import sources
from scope_jax.data.corpus import load_corpus
from scope_jax.text import templates
from tests.data.files import source

Case = tuple[str, bytes, str, str, str]  # file name, content, how it is read, place, words


def line(
    text: str | bytes, kind: str = "answers", place: str = ", line 2", words: str = "", name: str = "f.jsonl"
) -> Case:
    """A file whose second line is bad; the others are valid."""
    good = json.dumps(GOOD[kind]).encode()
    bad = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return name, good + b"\n" + bad + b"\n" + good + b"\n", kind, place, words


def row(words: str, kind: str, /, **changes: Any) -> Case:
    """A file whose second row differs from a valid one in `changes`; ... removes a key."""
    changed = {key: value for key, value in (GOOD[kind] | changes).items() if value is not ...}
    return line(json.dumps(changed), kind, words=words)


def table(columns: dict[str, Any], kind: str, place: str, words: str) -> Case:
    """A Parquet file with these columns."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return "f.parquet", file.getvalue(), kind, place, words


def packed(content: bytes, words: str) -> Case:
    return "f.jsonl.gz", content, "answers", "", words


def prompt(content: bytes, words: str) -> Case:
    return "role.txt", content, "prompt", "", words


GOOD: dict[str, dict[str, Any]] = {
    "answers": {"answer": "Rome"},
    "questions": {"question": "Which city?", "answers": ["Rome"]},
    "tasks": {"question": "Tell of Rome.", "rubric": [{"criterion": "Names the Tiber."}]},
    "documents": {"id": "rome", "title": "Rome", "text": "Rome lies on the Tiber."},
    "corpus": {"id": "rome", "title": "Rome", "text": "Rome lies on the Tiber."},
}
READ: dict[str, tuple[str, Any]] = {  # one field of each of these rows, as a game gets it
    "answers": ("answers", ["Rome"]),
    "questions": ("answers", ["Rome"]),
    "tasks": ("question", "Tell of Rome."),
    "documents": ("text", "Rome lies on the Tiber."),
    "corpus": ("title", "Rome"),
}
HALF = "\ud83d"  # half of a surrogate pair
GOOD_LINES = b'{"answer": "Rome"}\n' * 3000
GZIPPED = gzip.compress(GOOD_LINES)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("f.jsonl", GOOD_LINES)
    return file.getvalue()


def parquet(content: bytes, words: str = "cannot be read as Parquet") -> Case:
    return "f.parquet", content, "answers", "", words


def whole_parquet() -> bytes:
    return table({"answer": ["Rome"] * 100}, "answers", "", "")[1]


def damaged_text() -> pa.Array:
    """Strings, the second of which is not UTF-8."""
    return pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\4\0\0\0\7\0\0\0"), pa.py_buffer(b"Rome\xff\xfe\xfd")]
    )


FOUND: dict[str, Case] = {  # cases that were once accepted or ended in a traceback
    "answer is a number": row("`answer` holds a number, not text", "answers", answer=42),
    "answer is null": row("has no answers", "answers", answer=None),
    "answers are null": row("has no answers", "questions", answers=None),
    "answers are none": row("has no answers", "questions", answers=[]),
    "answers with a number": row("`answers[0]` holds a number", "questions", answers=[1, None]),
    "answers with null": row("`answers[1]` holds null", "questions", answers=["Rome", None]),
    "empty answer": row("`answer` is empty", "answers", answer=""),
    "Latin-1": line('{"answer": "Besançon"}'.encode("latin-1"), words="is not UTF-8 (byte 18 is 0xe7)"),
    "UTF-16": ("f.jsonl", '{"answer": "Rome"}\n'.encode("utf-16"), "answers", "", "UTF-16"),
    "deep JSON": line('{"answer": "Rome", "more": ' + "[" * 100_000 + "]" * 100_000 + "}", words="nested too deep"),
    "a number of 5,000 digits": line('{"answer": "Rome", "more": ' + "1" * 5000 + "}", words="too many digits"),
    "broken Parquet": parquet(b"hello"),
    "no question": row("has no question", "questions", question=...),
    "question is a number": row("`question` holds a number", "questions", question=7),
    "cut gzip": packed(GZIPPED[:-20], "is not a complete gzip file"),
    "no gzip": packed(GOOD_LINES, "is not a complete gzip file (Not a gzipped file"),
    "NaN": line('{"answer": "Rome", "score": NaN}', words="holds NaN, which is not JSON"),
    "Infinity": line('{"answer": "Rome", "score": Infinity}', words="holds Infinity"),
    "a key twice": line('{"answer": "Rome", "answer": "Oslo"}', words="holds the key 'answer' twice"),
    "half a character in an answer": row("half of a surrogate pair", "answers", answer=HALF),
    "half a character in a passage": row("`text` holds half of a surrogate pair", "corpus", text=HALF),
    "prompt is not UTF-8": prompt("für {answer}".encode("latin-1"), "is not UTF-8"),
}

OWN: dict[str, Case] = {
    # JSON lines in general
    "comma at the end": line('{"answer": "Rome",}', words="not JSON"),
    "single quotes": line("{'answer': 'Rome'}", words="not JSON"),
    "two objects": line('{"answer": "Rome"} {"answer": "Oslo"}', words="not JSON (Extra data at character 20)"),
    "a string": line('"Rome"', words="a string, not an object"),
    "a number": line("42", words="a number, not an object"),
    "true": line("true", words="true or false, not an object"),
    "null": line("null", words="null, not an object"),
    "a list of objects": line('[{"answer": "Rome"}]', words="a list, not an object"),
    "an object over lines": line('{\n"answer": "Rome"\n}', words="not JSON"),
    "a comment": line("// the capitals", words="not JSON"),
    "CSV": ("f.jsonl", b"answer,aliases\nRome,Roma\n", "answers", ", line 1", "not JSON"),
    "line ends of old": ("f.jsonl", b'{"answer": "Rome"}\r{"answer": "Oslo"}\r', "answers", ", line 1", "not JSON"),
    "cut line": line('{"answer": "Ro', words="not JSON (Invalid control character at character 15)"),
    "zeros": line(b"\0" * 64, words="not JSON"),
    "blank lines only": ("f.jsonl", b"\n  \n\t\n", "answers", "", "is empty"),
    "nothing": ("f.jsonl", b"", "answers", "", "is empty"),
    "a mark in the middle": line(b'\xef\xbb\xbf{"answer": "Rome"}', words="not JSON"),
    "-Infinity": line('{"answer": "Rome", "score": -Infinity}', words="holds -Infinity"),
    "1e999": line('{"answer": "Rome", "score": 1e999}', words="the number 1e999, which is too large"),
    "a key twice below": line('{"answer": "Rome", "meta": {"a": 1, "a": 2}}', words="holds the key 'a' twice"),
    "unknown escape": line(r'{"answer": "\x41"}', words="not JSON (Invalid \\escape"),
    "control character": line('{"answer": "Rome\x01"}', words="not JSON (Invalid control character at character 17)"),
    "cut character": line(b'{"answer": "\xe6\x95"}', words="is not UTF-8"),
    "character written too long": line(b'{"answer": "\xc0\xafx"}', words="is not UTF-8"),
    "UTF-32": ("f.jsonl", '{"answer": "Rome"}'.encode("utf-32"), "answers", "", "UTF-32"),
    "a Parquet file as JSONL": ("f.jsonl", whole_parquet(), "answers", ", line 1", "is not UTF-8"),
    # answers and questions
    "blank answer": row("`answer` is empty", "answers", answer=" \t"),
    "answer is true": row("`answer` holds true or false", "answers", answer=True),
    "answer is an object": row('such as "answer.value"', "answers", answer={"value": "Rome"}),
    "answers in a list in a list": row("`answer[0]` holds a list", "answers", answer=[["Rome"]]),
    "one answer is empty": row("`answers[1]` is empty", "questions", answers=["Rome", ""]),
    "answers of SQuAD": row('such as "answers.text"', "questions", answers={"text": ["Rome"], "answer_start": [1]}),
    "aliases are a number": row("`aliases` holds a number", "answers", aliases=3),
    "an alias is null": row("`aliases[0]` holds null", "answers", aliases=[None]),
    "an alias is half a character": row("`aliases[1]` holds half of", "answers", aliases=["Roma", HALF]),
    "question is a list": row("`question` holds a list", "questions", question=["Which?"]),
    "question is blank": row("`question` is empty", "questions", question="  "),
    "question is half a character": row("`question` holds half of", "questions", question=f"Which {HALF}?"),
    "misspelt": row("its columns are `anwser`", "answers", answer=..., anwser="Rome"),
    "no column at all": row("its columns are none", "answers", answer=...),
    "0 searches": row("`search_turns` holds 0", "answers", search_turns=0),
    "-1 searches": row("`search_turns` holds -1", "answers", search_turns=-1),
    "2.5 searches": row("`search_turns` holds 2.5", "answers", search_turns=2.5),
    "searches in a string": row("`search_turns` holds a string", "answers", search_turns="3"),
    "searches are true": row("`search_turns` holds true or false", "answers", search_turns=True),
    "searches in a list": row("`search_turns` holds a list", "answers", search_turns=[1, 2]),
    "searches beyond numbers": row("far too large", "answers", search_turns=10**400),
    # gzip
    "gzip with a tail": packed(GZIPPED + b"tail", "is not a complete gzip file"),
    "gzip with a changed byte": packed(GZIPPED[:40] + b"\xff" + GZIPPED[41:], "is not a complete gzip file"),
    "gzip of nothing": packed(b"", "is empty"),
    "gzip in gzip": packed(gzip.compress(GZIPPED), "line 1: is not UTF-8"),
    "zip": packed(zipped(), "is not a complete gzip file"),
    "gzip without the ending": ("f.jsonl", GZIPPED, "answers", ", line 1", "is not UTF-8"),
    # Parquet
    "cut Parquet": parquet(whole_parquet()[:-30]),
    "Parquet of zeros": parquet(bytes(1000)),
    "empty Parquet": parquet(b""),
    "JSONL as Parquet": parquet(GOOD_LINES),
    "Parquet without rows": table({"answer": pa.array([], pa.string())}, "answers", "", "is empty"),
    "Parquet of numbers": table({"answer": [1, 2]}, "answers", ", row 1", "`answer` holds a number"),
    "Parquet with null": table({"answer": ["Rome", None]}, "answers", ", row 2", "has no answers"),
    "Parquet of other columns": table({"reply": ["Rome"]}, "answers", ", row 1", "its columns are `reply`"),
    "Parquet that is not UTF-8": table({"answer": damaged_text()}, "answers", ", row 2", "text that is not UTF-8"),
    "Parquet of bytes": table({"answer": [b"Rome"]}, "answers", ", row 1", "`answer` holds a bytes"),
    "Parquet with NaN": table(
        {"question": ["Q"], "rubric": [[{"criterion": "c", "weight": float("nan")}]]}, "tasks", ", row 1", "not finite"
    ),
    "Parquet without a text": table({"title": ["a", "b"], "text": ["c", None]}, "corpus", ", row 2", "has no text"),
    # documents and corpora
    "text is a number": row("`text` holds a number", "corpus", text=3),
    "text is blank": row("`text` is empty", "documents", text="\n"),
    "text is missing": row("has no text", "documents", text=...),
    "title is a list": row("`title` holds a list", "documents", title=["Rome"]),
    "title is half a character": row("`title` holds half of", "corpus", title=HALF),
    "id is a list": row("`id` holds a list", "documents", id=[1]),
    "id is true": row("`id` holds true or false", "corpus", id=True),
    "id is half a character": row("`id` holds half of", "corpus", id=HALF),
    "contents are a number": row("`contents` holds a number", "corpus", contents=3),
    "contents are blank": row("`contents` is empty", "documents", contents=" "),
    # tasks with rubrics
    "rubric is missing": row("has no rubric", "tasks", rubric=...),
    "rubric is a string": row("`rubric` holds a string, not a list", "tasks", rubric="Names the Tiber."),
    "rubric is an object": row("`rubric` holds an object, not a list", "tasks", rubric={"criterion": "c"}),
    "rubric of strings": row("`rubric[0]` holds a string, not a criterion", "tasks", rubric=["Names the Tiber."]),
    "criterion is blank": row("`rubric[0].criterion` is empty", "tasks", rubric=[{"criterion": " "}]),
    "criterion is missing": row("`rubric[0].criterion` holds null", "tasks", rubric=[{"weight": 1}]),
    "weight is a string": row("`rubric[0].weight` holds a string", "tasks", rubric=[{"criterion": "c", "weight": "2"}]),
    "weight is true": row("holds true or false, not a number", "tasks", rubric=[{"criterion": "c", "weight": True}]),
    "weight is beyond reason": row("far too large", "tasks", rubric=[{"criterion": "c", "points": 1e300}]),
    "no positive weight": row("has a positive weight", "tasks", rubric=[{"criterion": "c", "points": -5}]),
    "explanation is a list": row("explanation` holds a list", "tasks", rubric=[{"criterion": "c", "explanation": [1]}]),
    "priority is a number": row("priority` holds a number", "tasks", rubric=[{"criterion": "c", "priority": 3}]),
    "dimension is a list": row("dimension` holds a list", "tasks", rubric=[{"criterion": "c", "dimension": ["d"]}]),
    "shares are a list": row("`dimension_weight` holds a list", "tasks", dimension_weight=[0.5]),
    "a share is a string": row(
        "`dimension_weight.d` holds a string",
        "tasks",
        dimension_weight={"d": "0.5"},
        rubric=[{"criterion": "c", "dimension": "d"}],
    ),
    "a message without a role": row("`messages[0]` is not a message", "tasks", messages=[{"content": "Hi"}]),
    "a message without words": row(
        "`messages[0].content` holds null", "tasks", messages=[{"role": "user", "content": None}]
    ),
    # prompts
    "unknown variable": prompt(b"{answer} {aswer}", "unknown variable {aswer}"),
    "variable that is missing": prompt(b"Write a question.", "the variable {answer} is missing"),
    "variable with a space": prompt(b"{answer} { n }", "'{ n }' is not a variable"),
    "variable left open": prompt(b"{answer} needs {n searches", "'{n' is not a variable"),
    "variable never opened": prompt(b"{answer} needs n} searches", "'n}' is not a variable"),
    "prompt in UTF-16": prompt("{answer}".encode("utf-16"), "is not UTF-8"),
    "prompt of spaces": prompt(b" \n ", "is empty"),
}


def read(path: Path, kind: str) -> Sequence[Any]:
    """The rows of a file, or the one text of a prompt file, read as a run does."""
    match kind:
        case "prompt":
            return [templates.load(path.parent, path.stem, known=("answer", "n"), required=("answer",))]
        case "corpus":
            corpus = load_corpus(path)
            return corpus.documents(0, len(corpus))
        case "answers" | "questions" | "tasks" | "documents":
            return sources.load(source(path, kind))
        case _:
            raise AssertionError(kind)


def refused(call: Callable[[], object]) -> str:
    """The error message of a call, as the command line prints it."""
    with pytest.raises((ValueError, OSError)) as caught:
        call()
    assert errors.is_users(caught.value), caught.value
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and len(text) < 600
    text.encode("utf-8")  # it can be printed
    return text


@pytest.mark.parametrize("case", [*FOUND.values(), *OWN.values()], ids=[*FOUND, *OWN])
def test_the_error_names_a_bad_file_and_what_is_wrong(tmp_path: Path, case: Case) -> None:
    name, content, kind, place, words = case
    path = tmp_path / name
    path.write_bytes(content)
    text = refused(lambda: read(path, kind))
    assert f"{path}{place}" in text and words in text


def test_there_are_more_than_sixty_cases() -> None:
    assert len(OWN) > 60 and not FOUND.keys() & OWN.keys()
    assert len({case[:3] for case in (*FOUND.values(), *OWN.values())}) == len(FOUND) + len(OWN)


@pytest.mark.parametrize("kind", GOOD)
def test_the_rows_that_the_cases_change_are_valid(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD[kind]).encode() + b"\r\n\n")  # byte-order mark, CRLF, blank line
    (row,) = read(path, kind)
    field, value = READ[kind]
    assert (row[field] if kind != "corpus" else getattr(row, field)) == value


@pytest.mark.parametrize("name", ["f", "f.jsonl", "f.jsonl.gz", "f.parquet", "role.txt"])
@pytest.mark.parametrize("kind", ["answers", "corpus", "prompt"])
def test_a_folder_instead_of_a_file(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    text = refused(lambda: read(folder, kind))
    assert ("the prompt file does not exist" if kind == "prompt" else f"{folder} is not a file") in text


@pytest.mark.parametrize("name", ["f.jsonl", "f.json.gz", "f.parquet"])
@pytest.mark.parametrize("kind", ["answers", "corpus", "documents"])
def test_a_missing_file(tmp_path: Path, name: str, kind: str) -> None:
    assert f"{tmp_path / name} does not exist" in refused(lambda: read(tmp_path / name, kind))


def test_a_missing_prompt(tmp_path: Path) -> None:
    assert f"{tmp_path / 'role.txt'}: the prompt file does not exist" in refused(
        lambda: read(tmp_path / "role.txt", "prompt")
    )


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["answer", "answer"]), path)
    assert f"{path} has two columns with the same name" in refused(lambda: read(path, "answers"))


@pytest.mark.parametrize("kind", ["answers", "corpus"])
def test_a_hub_data_set_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    text = refused(lambda: read(Path("nobody/nothing"), kind))
    assert "nobody/nothing is not a local file, and the split 'train' cannot be loaded from the hub" in text


COMMANDS = {
    "answers": ("configs/ssp/atlas.toml", "data.answers={path}", FOUND["cut gzip"]),
    "questions": ("configs/ssp/atlas.toml", "evaluate.sets=[{{name='q', path='{path}'}}]", FOUND["no question"]),
    "corpus": ("configs/scope/atlas.toml", "data.documents={path}", OWN["text is blank"]),
    "tasks": ("configs/scope/atlas.toml", "evaluate.sets=[{{name='t', path='{path}'}}]", OWN["rubric is a string"]),
}


@pytest.mark.parametrize(("card", "override", "case"), COMMANDS.values(), ids=COMMANDS)
def test_the_command_line_prints_one_message(tmp_path: Path, card: str, override: str, case: Case) -> None:
    name, content, _, place, words = case
    path = tmp_path / name
    path.write_bytes(content)
    result = CliRunner().invoke(
        app, ["train", card, "--run", str(tmp_path / "run"), "--set", override.format(path=path)]
    )
    assert result.exit_code == 2 and result.stdout == "", result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("scope-jax: ") and f"{path}{place}" in last and words in last
    assert "Traceback" not in result.stderr
