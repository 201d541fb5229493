"""The prompts of SPELL's roles (App. E), filled in. Foreign text is made safe before it enters a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from scope_jax.config import Config
from scope_jax.systems.spell.records import Entry, Order, Question
from scope_jax.text import dialects, parsing, templates
from scope_jax.text.messages import Messages

TASKS = ("qa", "math", "choice")
ROLES = (*(f"{role}_{task}" for role in ("questioner", "responder") for task in TASKS), "verifier")
OWN_TAGS = ("text",)  # around the documents of a prompt


def shown(cfg: Config, text: str) -> str:
    """`text` with all tags that mean something in square brackets."""
    return _neutral(text, (*dialects.load(cfg.model.dialect).tags, *OWN_TAGS))


@lru_cache(maxsize=4096)  # a document is shown to both questioner and responder, and again with its cluster
def _neutral(text: str, tags: tuple[str, ...]) -> str:
    return parsing.neutralise(text, tags)


def quoted(cfg: Config, text: str) -> str:
    """The same without double brackets: a decision that an answer quotes is none, and names none to the verifier."""
    while "[[" in text or "]]" in text:
        text = text.replace("[[", "[").replace("]]", "]")
    return shown(cfg, text)


@lru_cache(maxsize=64)
def _template(folder: str, role: str, names: tuple[str, ...], required: tuple[str, ...]) -> Messages:
    return templates.load_messages(folder, role, known=names, required=required, tools=())


def _filled(cfg: Config, role: str, values: Mapping[str, object], required: tuple[str, ...]) -> Messages:
    messages = templates.fill_messages(_template(cfg.spell.prompts, role, tuple(values), required), values)
    return Messages(messages.user.strip(), messages.system)


def documents_of(cfg: Config, documents: Sequence[Mapping[str, str]]) -> str:
    """Documents as a prompt shows them, each under its title, without numbers: no question is to refer to them."""
    texts = [f"Title: {d['title']}\n{d['text'].strip()}" if d["title"] else d["text"].strip() for d in documents]
    return "\n\n".join(shown(cfg, text) for text in texts)


def for_questioner(cfg: Config, order: Order) -> Messages:
    """Write a question about documents, and one that is harder than those remembered, if there are any."""
    role = f"questioner_{order.task}"
    values = {
        "documents": documents_of(cfg, order.documents),
        "earlier": _earlier(cfg, order),
        "answer_tokens": cfg.spell.max_answer_tokens,
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
    """Answer a question about documents."""
    values = {"documents": documents, "question": shown(cfg, question.whole)}
    return _filled(cfg, f"responder_{task}", values, ("documents", "question"))


def nothing(cfg: Config) -> str:
    """What stands in place of the documents where the responder has to answer without them."""
    return _filled(cfg, "nothing", {}, ()).user


def for_verifier(cfg: Config, question: Question, answer: str, reference: str) -> Messages:
    """Say whether an answer is equivalent to the reference."""
    values = {
        "problem": quoted(cfg, question.whole),
        "answer": quoted(cfg, answer),
        "reference": quoted(cfg, reference),
    }
    return _filled(cfg, "verifier", values, ("problem", "answer", "reference"))
