"""A device that has run out of memory is the user's to mend: one sentence with the phase and the keys to turn down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from jax.errors import JaxRuntimeError

from scope_jax.errors import UserError

EXHAUSTED = "RESOURCE_EXHAUSTED"  # the code of XLA's errors
GENERATING = "rollout.slots, rollout.max_length or rollout.cache_gib"
LEARNING = 'learner.micro_batch_rows or the largest of learner.buckets, or set learner.remat = "full"'
KEYS = {  # by phase of a step, what to turn down
    "play": GENERATING,
    "evaluate": GENERATING,
    "learn": LEARNING,
    "wait": LEARNING,
    "checkpoint": LEARNING,
}
_SIZE = re.compile(
    r"(?:allocat\w*|asked for|required)\D{0,40}?([\d.]+ ?(?:[KMGT](?:i?B)?|B|bytes))(?!\w)", re.IGNORECASE
)


class DeviceMemoryError(UserError):
    """A device has no memory left; the message is one sentence with the remedy."""


def is_exhausted(error: BaseException) -> bool:
    """True for an error of XLA that says so, of a device or of the processor's memory."""
    return isinstance(error, JaxRuntimeError) and EXHAUSTED in str(error)


def out_of_memory(error: BaseException, phase: str = "") -> DeviceMemoryError:
    """The error for one that is `is_exhausted`. phase: of a step; "": the command was loading, or serves."""
    size = _SIZE.search(str(error))
    asked = f" as it asked for {size[1]} more" if size else ""
    place = f"in the phase {phase!r}" if phase else "while weights were loaded, or outside of training"
    keys = KEYS.get(phase, f"{GENERATING}; in training also {LEARNING}")
    return DeviceMemoryError(
        f"a device ran out of memory {place}{asked}: turn down {keys}; `scope-jax plan CARD` says what fits, and "
        "docs/plans.md#if-it-does-not-fit what each key costs."
    )


@contextmanager
def memory_of(phase: str) -> Iterator[None]:
    """A phase of a step, in which a device may run out of memory: that is raised as a DeviceMemoryError."""
    try:
        yield
    except JaxRuntimeError as error:
        if not is_exhausted(error):
            raise
        raise out_of_memory(error, phase) from error
