"""The program: what every command has in common, and how errors and signals end it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scope_jax.errors import UserError, is_users, sentence
from scope_jax.run.stopping import Stopped, listen


class Commands(TyperGroup):
    """Prints user errors as one sentence and exits with code 2; --debug shows the traceback instead.

    Ctrl-C and SIGTERM print one sentence and exit with code 130 or 143.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            from retrieval.exchange import abandon

            abandon()  # threads waiting for a server would keep the process alive
            stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
            typer.echo(f"{_who()}stopped by {stopped}; the same command resumes from the last checkpoint.", err=True)
            raise typer.Exit(stopped.exit_code) from None
        except (UserError, OSError, ValueError) as error:
            if ctx.params["debug"] or not is_users(error):
                raise
            typer.echo(f"{_who()}{sentence(error)}", err=True)
            raise typer.Exit(2) from None


def _who() -> str:
    """What a message about the end of this process begins with."""
    from scope_jax.run.processes import prefix

    return prefix()


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Self-play post-training of language models in JAX.",
)


def run() -> None:
    """The `scope-jax` program."""
    listen()
    try:
        app()
    except BaseException as error:
        from scope_jax.run.processes import leave

        leave(error)
        raise


@app.callback()
def main(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of user errors.")] = False) -> None:
    """Self-play post-training of language models in JAX."""
    quiet_libtpu()


def quiet_libtpu() -> None:
    """Silences libtpu on machines without a TPU, where it may be installed for ahead-of-time compilation.

    JAX tries every platform it finds; libtpu then queries its TPU slice and prints a page of errors before JAX tries
    the next one. The variables answer that query. They are set only if there is no TPU device file.
    """
    if not any(any(Path("/dev").glob(pattern)) for pattern in ("accel[0-9]*", "vfio/[0-9]*")):
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
