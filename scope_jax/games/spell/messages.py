"""The prompts of SPELL's roles (App. E), filled in. Untrusted text is neutralised before it enters a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config
from scope_jax.games.spell.options import options
from scope_jax.games.spell.state import Entry, Question, QuestionerContext
from scope_jax.play import prompting
from scope_jax.play.documents import without_middle
from scope_jax.play.prompting import Prompt
from scope_jax.text.messages import Messages

TASKS = ("qa", "math", "choice")
QUESTIONER = {
    task: Prompt(f"questioner_{task}", ("documents", "earlier", "answer_tokens"), ("documents", "earlier"))
    for task in TASKS
}
EARLIER = {task: Prompt(f"earlier_{task}", ("examples",), system=False) for task in TASKS}
RESPONDER = {task: Prompt(f"responder_{task}", ("documents", "question")) for task in TASKS}
NOTHING = Prompt("nothing", system=False)
VERIFIER = Prompt("verifier", ("problem", "answer", "reference"))
_TAGS = ("text",)  # enclose the documents in a prompt


def shown(cfg: Config, text: str) -> str:
    """`text` with all reserved tags neutralised (in square brackets)."""
    return prompting.shown(cfg, text, _TAGS)


def quoted(cfg: Config, text: str) -> str:
    """`shown`, without double brackets: an answer must not show the verifier a decision such as [[YES]]."""
    while "[[" in text or "]]" in text:
        text = text.replace("[[", "[").replace("]]", "]")
    return shown(cfg, text)


def _stripped(messages: Messages) -> Messages:
    """Without white space at the ends of the user message, where a variable may be empty."""
    return replace(messages, user=messages.user.strip())


def documents_of(cfg: Config, documents: Sequence[Mapping[str, str]]) -> str:
    """Documents as shown in a prompt, each under its title; not numbered, since questions must not refer to numbers."""
    texts = [f"Title: {d['title']}\n{d['text'].strip()}" if d["title"] else d["text"].strip() for d in documents]
    return "\n\n".join(shown(cfg, text) for text in texts)


def for_questioner(cfg: Config, context: QuestionerContext) -> Messages:
    """Prompt to write a question about documents, harder than the remembered ones if there are any."""
    prompt = QUESTIONER[context.task].messages(
        cfg,
        documents=documents_of(cfg, context.documents),
        earlier=_earlier(cfg, context),
        answer_tokens=options(cfg).max_answer_tokens,
    )
    return _stripped(prompt)


def _earlier(cfg: Config, context: QuestionerContext) -> str:
    if not context.history:
        return ""
    examples = "\n\n".join(_example(cfg, number, entry) for number, entry in enumerate(context.history, 1))
    return EARLIER[context.task].text(cfg, examples=examples).strip()


def _example(cfg: Config, number: int, entry: Entry) -> str:
    return f"Example {number}\nQuestion: {shown(cfg, entry.question)}\nAnswer: {shown(cfg, entry.answer)}"


def for_responder(cfg: Config, task: str, question: Question, documents: str) -> Messages:
    """Prompt to answer a question about documents."""
    return _stripped(RESPONDER[task].messages(cfg, documents=documents, question=shown(cfg, question.whole)))


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
    return NOTHING.text(cfg)


def for_verifier(cfg: Config, question: Question, answer: str, reference: str) -> Messages:
    """Prompt to decide whether an answer is equivalent to the reference."""
    prompt = VERIFIER.messages(
        cfg,
        problem=quoted(cfg, question.whole),
        answer=quoted(cfg, answer),
        reference=quoted(cfg, reference),
    )
    return _stripped(prompt)
