"""Which errors are the user's to mend (one sentence, exit code 2) and which are ours (a traceback).

The rooms below raise ValueError, FileNotFoundError, ConnectionError or a subclass with one sentence: what, where, what
to do. A ValueError also comes out of numpy or jax when our own code is wrong; whose line raised it tells them apart.
"""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).parents[1]
ROOMS = tuple(HOME / room for room in ("scope_jax", "rollouts", "models", "retrieval", "sharding"))


class UserError(Exception):
    """Something only the person at the keyboard can put right; the message is one sentence that says how."""


def is_users(error: BaseException) -> bool:
    """True if `error` carries a sentence for the user: a UserError, an OSError (files, connections), our ValueError."""
    if isinstance(error, (UserError, OSError)):
        return True
    if not isinstance(error, ValueError):
        return False
    step = error.__traceback__
    if step is None:
        return False
    while step.tb_next is not None:
        step = step.tb_next
    source = Path(step.tb_frame.f_code.co_filename)
    return any(source.is_relative_to(room) for room in ROOMS)


def sentence(error: BaseException) -> str:
    """The error's message on one line, with a full stop."""
    text = " ".join(str(error).split())
    return text if text.endswith((".", ")")) else text + "."
