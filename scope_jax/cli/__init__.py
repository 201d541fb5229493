"""The command line: parses arguments, loads cards, runs commands, prints user errors in one sentence.

Heavy imports are inside the commands that need them, so that `--help` is quick and an invalid card is reported
before JAX starts. Importing a module of commands adds them to `app`, in the order of `--help`.
"""

from scope_jax.cli import listing, cards, new, machine, training, evaluation, weights, indexing, serving, reporting  # isort: skip
from scope_jax.cli.program import app, quiet_libtpu, run

__all__ = [
    "app",
    "cards",
    "evaluation",
    "indexing",
    "listing",
    "machine",
    "new",
    "quiet_libtpu",
    "reporting",
    "run",
    "serving",
    "training",
    "weights",
]
