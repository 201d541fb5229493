"""The prompts of SPICE's roles (App. 11), filled in. Untrusted text is neutralised before it enters a prompt."""

from __future__ import annotations

from collections.abc import Mapping

from scope_jax.config import Config
from scope_jax.games.spice.options import options
from scope_jax.games.spice.state import MULTIPLE_CHOICE, Segment
from scope_jax.play.prompting import filled, shown
from scope_jax.text import templates
from scope_jax.text.messages import Messages

ROLES = ("challenger", "reasoner")  # each may have a system message


def for_format(cfg: Config, document: Segment) -> Messages:
    """First stage: prompt to choose the format of a task."""
    types = options(cfg).answer_types
    values = {
        "answer_types": ", ".join(types),
        "type_names": " or ".join(f'"{name.title()}"' for name in types),
        **_document(cfg, document),
    }
    name = "format_free_form" if options(cfg).formats == "free-form" else "format"
    return _messages(cfg, "challenger", _variant(cfg, name), values)


def for_task(cfg: Config, document: Segment, kind: str) -> Messages:
    """Second stage: prompt to write a task of this kind."""
    if kind == MULTIPLE_CHOICE:
        return _messages(cfg, "challenger", _variant(cfg, "multiple_choice"), _document(cfg, document))
    form = filled(options(cfg).prompts, f"answer_{kind}", {"max_words": options(cfg).max_answer_words})
    values = {"answer_type": kind.title(), "answer_form": form, **_document(cfg, document)}
    return _messages(cfg, "challenger", _variant(cfg, "free_form"), values)


def for_reasoner(cfg: Config, question: str) -> Messages:
    """Prompt to solve a task, which shows only the question."""
    return _messages(cfg, "reasoner", "reasoner", {"question": shown(cfg, question)})


def _document(cfg: Config, document: Segment) -> dict[str, str]:
    """The template variable of the document, whose text was neutralised before it was cut into segments."""
    return {"document": document.text} if options(cfg).corpus else {}


def _variant(cfg: Config, name: str) -> str:
    return name if options(cfg).corpus else f"{name}_open"


def _messages(cfg: Config, role: str, name: str, values: Mapping[str, object]) -> Messages:
    folder, required = options(cfg).prompts, tuple(set(values) & {"document", "question"})
    system = [filled(folder, file.stem, {}) for file in templates.system_files(folder, [role])]
    return Messages(filled(folder, name, values, required), system[0] if system else None)


def check_prompts(cfg: Config) -> None:
    """Fills in every prompt that the card's game uses, with sample values; raises PromptError."""
    document = Segment(0, "", "")
    if options(cfg).formats != "multiple-choice":
        for_format(cfg, document)
    kinds = () if options(cfg).formats == "multiple-choice" else options(cfg).answer_types
    for kind in (*kinds, *(() if options(cfg).formats == "free-form" else (MULTIPLE_CHOICE,))):
        for_task(cfg, document, kind)
    for_reasoner(cfg, "")
