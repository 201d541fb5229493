"""`scope-jax selftest`: does this machine compute what it should?

Every check compares two ways to one result on the devices that are here: a platform's kernels with plain XLA
(`kernels`), the engine with the learner, several devices with one, and a repetition with itself (`programs`). Models
are small and random, so nothing is loaded and a check takes seconds. docs/operations.md says what to do about a
difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import jax

from scope_jax.errors import UserError
from scope_jax.models.decoder import backends as kernels
from scope_jax.models.decoder.check import Check, Outcome, outcome
from scope_jax.selftest import programs


def selftest(
    tell: Callable[[str], None], only: Sequence[str] = (), devices: Sequence[Any] | None = None
) -> dict[str, Any]:
    """The machine, and the outcome of each check, which `tell` is told as soon as it is known.

    only: parts of the names of the checks that are run; () for all. devices: those of this process if None. "failed" is
    the number of checks that differ or end in an error. Raises UserError if no check has such a name.
    """
    devices = jax.local_devices() if devices is None else list(devices)
    checks = [*kernels.checks(devices[0].platform), *programs.checks(devices)]
    chosen = [check for check in checks if not only or any(part in check.name for part in only)]
    if not chosen:
        raise UserError(f"no check has {' or '.join(only)} in its name; they are: {'; '.join(c.name for c in checks)}.")
    outcomes = []
    for check in chosen:
        outcomes.append(outcome(check))
        tell(line(outcomes[-1]))
    kinds = Counter(device.device_kind for device in devices)
    return {
        "devices": " and ".join(f"{count} × {kind}" for kind, count in kinds.items()),
        "versions": {name: version(name) for name in ("scope-jax", "jax", "jaxlib")},
        "checks": [vars(one) for one in outcomes],
        "failed": sum(one.failed for one in outcomes),
    }


def line(found: Outcome) -> str:
    """An outcome on one line."""
    start = f"{found.status:<8} {found.name}"
    if found.deviation is None:
        return f"{start}: {found.message}"
    return f"{start}: {found.deviation:.2g} from {found.against}, at most {found.bound:.2g}, {found.seconds:.1f} s"


__all__ = ["Check", "Outcome", "line", "selftest"]
