"""The prompts of SPICE's roles (App. 11), filled in. Untrusted text is neutralised before it enters a prompt."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.games.spice.options import SpiceSection, options
from scope_jax.games.spice.state import MULTIPLE_CHOICE, Segment
from scope_jax.play.prompting import Prompt, shown
from scope_jax.text.messages import Messages


def _variants(name: str, *variables: str) -> dict[bool, Prompt]:
    """A prompt of the challenger with a document (True), and the one without a corpus (False)."""
    return {
        True: Prompt(name, (*variables, "document"), required=("document",), system_of="challenger"),
        False: Prompt(f"{name}_open", variables, required=(), system_of="challenger"),
    }


FORMAT = _variants("format", "answer_types", "type_names")
FORMAT_FREE_FORM = _variants("format_free_form", "answer_types", "type_names")
CHOICE = _variants("multiple_choice")
FREE_FORM = _variants("free_form", "answer_type", "answer_form")
REASONER = Prompt("reasoner", ("question",))


def of_challenger(card: SpiceSection) -> tuple[Prompt, ...]:
    """The challenger's prompts under a card."""
    choice = (CHOICE[card.corpus],)
    if card.formats == "multiple-choice":
        return choice
    free_form = (FREE_FORM[card.corpus], *(answer_form(kind) for kind in card.answer_types))
    if card.formats == "free-form":
        return (FORMAT_FREE_FORM[card.corpus], *free_form)
    return (FORMAT[card.corpus], *free_form, *choice)


def answer_form(kind: str) -> Prompt:
    """The file that describes a type of answer."""
    return Prompt(f"answer_{kind}", ("max_words",), required=(), system=False)


def for_format(cfg: Config, document: Segment) -> Messages:
    """First stage: prompt to choose the format of a task."""
    card = options(cfg)
    prompt = FORMAT_FREE_FORM if card.formats == "free-form" else FORMAT
    return prompt[card.corpus].messages(
        cfg,
        answer_types=", ".join(card.answer_types),
        type_names=" or ".join(f'"{name.title()}"' for name in card.answer_types),
        document=document.text,
    )


def for_task(cfg: Config, document: Segment, kind: str) -> Messages:
    """Second stage: prompt to write a task of this kind."""
    card = options(cfg)
    if kind == MULTIPLE_CHOICE:
        return CHOICE[card.corpus].messages(cfg, document=document.text)
    return FREE_FORM[card.corpus].messages(
        cfg,
        answer_type=kind.title(),
        answer_form=answer_form(kind).text(cfg, max_words=card.max_answer_words),
        document=document.text,
    )


def for_reasoner(cfg: Config, question: str) -> Messages:
    """Prompt to solve a task, which shows only the question."""
    return REASONER.messages(cfg, question=shown(cfg, question))
