"""The prompts and parsers of exam suites: how a model without a game of its own answers a benchmark.

A form has a prompt file in the exams' folder (`evaluate.prompts`, `<form>.txt`) and a rule for where the answer is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scope_jax.config import Config, Measure
from scope_jax.config.suites import Form, SuiteCard
from scope_jax.data.schemas import Kind
from scope_jax.play import prompting
from scope_jax.play.documents import without_middle
from scope_jax.play.exams import Exam
from scope_jax.play.searching import cut_off, reply_text
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

Tokens = Callable[[str], int]
KINDS: Mapping[Form, Kind] = {
    "short": "questions",
    "math": "questions",
    "choice": "choices",
    "open": "questions",  # with a rubric: tasks or marked, by the measure
    "document": "readings",
}


def _last_answer(text: str) -> str | None:
    return parsing.last([text], "answer") or None


def _chosen(text: str) -> str | None:
    """The last box, else the text after the last "Answer:", else the last line, where many models write "the answer is
    (B)"."""
    lines = [line for line in text.splitlines() if line.strip()]
    return parsing.boxed(text) or parsing.labelled_answer(text) or (lines[-1].strip() if lines else None)


def _labelled(text: str) -> str | None:
    """The text after the last "Answer:", else the last box."""
    return parsing.labelled_answer(text) or parsing.boxed(text)


READ: Mapping[Form, Callable[[str], str | None]] = {
    "short": _last_answer,
    "math": parsing.boxed,
    "choice": _chosen,
    "open": lambda text: text.strip() or None,
    "document": _labelled,
}
# Of a reply that was cut, what is closed counts, and what a finished line says; a text without an end is no answer.
READ_CUT: Mapping[Form, Callable[[str], str | None]] = {
    "short": _last_answer,
    "math": parsing.boxed,
    "choice": lambda text: parsing.boxed(text) or parsing.labelled_answer(parsing.finished_lines(text)),
    "open": lambda text: None,
    "document": lambda text: parsing.labelled_answer(parsing.finished_lines(text)) or parsing.boxed(text),
}


def exam(cfg: Config, suite: SuiteCard, own: Exam | None, policy: str) -> Exam:
    """The exam of a suite for the policy `policy`.

    own: the exam of the card's game, if that game answers the suite with its own prompt, turns and searches.
    """
    if own is not None:
        ask = own.prompt
        if own.within is not None and suite.prompt_tokens is not None:
            ask = own.within(suite.prompt_tokens)
        return replace(
            own,
            prompt=lambda row, tokens: ask(row | {"question": question(row)}, tokens),
            kind=KINDS[suite.form],
        )
    return Exam(
        policy=policy,
        prompt=lambda row, tokens: prompt(cfg, suite, row, tokens),
        read=lambda completion: read(suite, completion),
        measures=suite.measures,
        accuracy=accuracy(cfg, suite.form),
        by_task=readings(cfg)[1] if suite.form == "document" else {},
        kind=KINDS[suite.form],
        stop=suite.stop,
    )


def accuracy(cfg: Config, form: Form) -> tuple[Measure, ...]:
    """The measures one of which must accept a right answer: SPICE App. 7 for mathematics, `readings` for documents."""
    if form == "math":
        return ("same-text", "math")
    return readings(cfg)[0] if form == "document" else ("exact-match",)


def readings(cfg: Config) -> tuple[tuple[Measure, ...], dict[str, tuple[Measure, ...]]]:
    """(measures one of which must accept a right answer about a document; those of the tasks math and choice), SPELL
    App. C.2: the rule or [evaluate.judge], if there is one; for multiple choice the letter alone.

    A judge that only grades in training is not asked: it would change the exam of cards that are to be compared.
    """
    judged: tuple[Measure, ...] = ("judge",) if cfg.evaluate.judge is not None else ()
    return ("cover-exact-match", *judged), {"math": ("numeric", *judged), "choice": ("choice",)}


def read(suite: SuiteCard, completion: Completion) -> str | None:
    """The answer in a reply up to a string of the suite's `stop`, without thinking; None if there is none, or if it may
    be the beginning of one."""
    text = reply_text(completion)
    return (READ_CUT if cut_off(completion) else READ)[suite.form](
        text[: min((place for place in map(text.find, suite.stop) if place >= 0), default=None)]
    )


def question(row: Mapping[str, Any]) -> str:
    """The question of a row, with its options under their letters if it has any and is no reading."""
    if "context" in row or not row.get("options"):
        return row["question"]
    return row["question"].rstrip() + "\n\n" + _listed(row["options"])


def _listed(options: list[str]) -> str:
    return "\n".join(f"({chr(ord('A') + place)}) {option}" for place, option in enumerate(options))


def prompt(cfg: Config, suite: SuiteCard, row: Mapping[str, Any], tokens: Tokens) -> Messages:
    """The prompt of the suite's form for a row. Raises PromptError.

    A form "document" cuts the middle out of a text, so that the prompt has at most `prompt_tokens` tokens.
    """
    folder = cfg.evaluate.prompts_folder
    if suite.form != "document":
        asked = prompting.shown(cfg, question(row))
        return prompting.for_role(folder, suite.form, {"question": asked}, ("question",))
    asked = row["question"] if not row["options"] else f"{row['question'].rstrip()}\n\n{_listed(row['options'])}"

    def filled(text: str) -> Messages:
        values = {"documents": text, "question": prompting.shown(cfg, asked)}
        return prompting.for_role(folder, suite.form, values, ("documents", "question"))

    text = prompting.shown(cfg, row["context"])
    if suite.prompt_tokens is not None:
        text = without_middle(text, max(suite.prompt_tokens - tokens(filled("").text), 0), tokens)
    return filled(text)
