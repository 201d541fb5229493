"""`python -m scope_jax` is the command line without the installed script."""

from scope_jax.cli import run

run()
