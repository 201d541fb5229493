"""The prompts of SPELL's roles (App. E), filled in. Untrusted text is neutralised before it enters a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.games.spell.options import options
from scope_jax.games.spell.state import Entry, Order, Question
from scope_jax.play import grading, prompting
from scope_jax.play.documents import without_middle
from scope_jax.text.messages import Messages

TASKS = ("qa", "math", "choice")
ROLES = (*(f"{role}_{task}" for role in ("questioner", "responder") for task in TASKS), "verifier")
_TAGS = ("text",)  # enclose the documents in a prompt


def shown(cfg: Config, text: str) -> str:
    """`text` with all reserved tags neutralised (in square brackets)."""
    return prompting.shown(cfg, text, _TAGS)


def quoted(cfg: Config, text: str) -> str:
    """`shown`, without double brackets: an answer must not show the verifier a decision such as [[YES]]."""
    while "[[" in text or "]]" in text:
        text = text.replace("[[", "[").replace("]]", "]")
    return shown(cfg, text)


def _filled(cfg: Config, role: str, values: Mapping[str, object], required: tuple[str, ...]) -> Messages:
    prompt = prompting.for_role(options(cfg).prompts, role, values, required)
    return Messages(prompt.user.strip(), prompt.system)


def documents_of(cfg: Config, documents: Sequence[Mapping[str, str]]) -> str:
    """Documents as shown in a prompt, each under its title; not numbered, since questions must not refer to numbers."""
    texts = [f"Title: {d['title']}\n{d['text'].strip()}" if d["title"] else d["text"].strip() for d in documents]
    return "\n\n".join(shown(cfg, text) for text in texts)


def for_questioner(cfg: Config, order: Order) -> Messages:
    """Prompt to write a question about documents, harder than the remembered ones if there are any."""
    role = f"questioner_{order.task}"
    values = {
        "documents": documents_of(cfg, order.documents),
        "earlier": _earlier(cfg, order),
        "answer_tokens": options(cfg).max_answer_tokens,
    }
    return _filled(cfg, role, values, ("documents", "earlier"))


def _earlier(cfg: Config, order: Order) -> str:
    if not order.history:
        return ""
    examples = "\n\n".join(_example(cfg, number, entry) for number, entry in enumerate(order.history, 1))
    return _filled(cfg, f"earlier_{order.task}", {"examples": examples}, ("examples",)).user


def _example(cfg: Config, number: int, entry: Entry) -> str:
    return f"Example {number}\nQuestion: {shown(cfg, entry.question)}\nAnswer: {shown(cfg, entry.answer)}"


def for_responder(cfg: Config, task: str, question: Question, documents: str) -> Messages:
    """Prompt to answer a question about documents."""
    values = {"documents": documents, "question": shown(cfg, question.whole)}
    return _filled(cfg, f"responder_{task}", values, ("documents", "question"))


def for_exam(cfg: Config, row: Mapping[str, Any], tokens: Callable[[str], int], limit: int) -> Messages:
    """The responder's prompt for a row, with at most `limit` tokens of text: the middle of the context is cut out if
    needed."""
    task = task_of(row)
    question = Question(row["question"], "", tuple(row["options"]))
    overhead = tokens(for_responder(cfg, task, question, "").text)
    context = without_middle(row["context"], max(limit - overhead, 0), tokens)
    return for_responder(cfg, task, question, shown(cfg, context))


def task_of(row: Mapping[str, Any]) -> str:
    """The task of a given question: the row's, else multiple choice if it has options, else document QA."""
    return row["task"] or ("choice" if row["options"] else "qa")


def nothing(cfg: Config) -> str:
    """The placeholder for the documents when the responder has to answer without them."""
    return _filled(cfg, "nothing", {}, ()).user


def for_verifier(cfg: Config, question: Question, answer: str, reference: str) -> Messages:
    """Prompt to decide whether an answer is equivalent to the reference."""
    values = {
        "problem": quoted(cfg, question.whole),
        "answer": quoted(cfg, answer),
        "reference": quoted(cfg, reference),
    }
    return _filled(cfg, "verifier", values, ("problem", "answer", "reference"))


def check_prompts(cfg: Config) -> None:
    """Fills in every prompt that the card's game uses, with sample values; raises PromptError."""
    entry, question = Entry((), "", ""), Question("", "")
    folder = Path(options(cfg).prompts)
    for task in (
        name for name in TASKS if options(cfg).tasks.get(name) or (folder / f"responder_{name}.txt").is_file()
    ):
        if options(cfg).mode != "rlvr":
            for_questioner(cfg, Order(0, {"documents": []}, task, "", (), (entry,)))
        for_responder(cfg, task, question, "")
    if options(cfg).mode != "rlvr" and options(cfg).grounding_filter:
        nothing(cfg)
    if options(cfg).rule == "judge":
        grading.prompt(options(cfg).prompts)
    for_verifier(cfg, question, "", "")
