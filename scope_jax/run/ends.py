"""What is said about the ends of replies: which tokens end them, and a doubt where the chat template names none."""

from __future__ import annotations

from scope_jax.config.model import ModelSection
from scope_jax.models.tokenizer import Tokenizer


class Doubt(str):
    """What was found, of which something may be wrong."""


def ends_of(card: ModelSection, tokenizer: Tokenizer) -> str:
    """The tokens and strings that end a reply, with who names them; a `Doubt` if the chat template ends a message with
    none of them."""
    named = ", ".join(f"{end.name} ({', '.join(end.sources)})" for end in tokenizer.ends)
    if card.stop:
        return f"{named}, {', '.join(map(repr, card.stop))} (model.stop)"
    end = tokenizer.template_end
    if not tokenizer.has_template or (end is not None and end.id is not None):
        return named
    writes = "does not show how it ends a reply" if end is None else f"ends a reply with the text {end.text[:40]!r}"
    return Doubt(
        f"the chat template {writes}, not with a token of the tokenizer; replies end with {named}, and run to their "
        "limit if the model does not write it; set model.stop to what the model writes after a reply."
    )
