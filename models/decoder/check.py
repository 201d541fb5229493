"""A check: two ways to one result, and how far apart they may be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

# Largest deviation relative to the largest number, by dtype of the operands: some roundings of it.
ROUNDING = {"float32": 1e-5, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Check:
    """name: what is computed; against: how else. measure: their distance, which passes up to `bound`; 0: the same bits.
    nothing: why there is nothing to compare here; "" if there is."""

    name: str
    against: str
    bound: float
    measure: Callable[[], float]
    nothing: str = ""


@dataclass(frozen=True)
class Outcome:
    """deviation: None if nothing was compared, for the reason in `message`. seconds include compilation."""

    name: str
    against: str
    status: Literal["ok", "differs", "error", "skipped"]
    bound: float
    deviation: float | None = None
    seconds: float = 0.0
    message: str = ""

    @property
    def failed(self) -> bool:
        return self.status in ("differs", "error")


def outcome(check: Check) -> Outcome:
    """Runs a check. An exception is its outcome: the compiler of a platform may refuse one kernel and take the next."""
    if check.nothing:
        return Outcome(check.name, check.against, "skipped", check.bound, message=check.nothing)
    began = time.monotonic()
    try:
        deviation = check.measure()
    except Exception as error:  # noqa: BLE001 (its sentence is shown, and the check has failed)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(check.name, check.against, "error", check.bound, None, time.monotonic() - began, what[:500])
    passed = deviation <= check.bound  # never for NaN
    status = "ok" if passed else "differs"
    return Outcome(check.name, check.against, status, check.bound, deviation, time.monotonic() - began)


def apart(ours: Any, reference: Any) -> float:
    """Largest difference of two trees of arrays, each relative to the largest number of its reference; inf if an array
    is not finite."""

    def one(x: jax.Array, y: jax.Array) -> float:
        wide_x, wide_y = (jnp.asarray(a, jnp.float32) for a in (x, y))
        found = float(jnp.max(jnp.abs(wide_x - wide_y)) / jnp.max(jnp.abs(wide_y)))
        return found if math.isfinite(found) else math.inf

    return max(jax.tree.leaves(jax.tree.map(one, ours, reference)))
