"""The program: what every command has in common, and how errors and signals end it."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from typer._click import exceptions as click  # typer carries its own copy
from typer.core import TyperGroup

from scope_jax.cli.tracebacks import culprit, show
from scope_jax.errors import UserError, is_users, sentence, without_passwords
from scope_jax.run.stopping import Stopped, bound, ending_program, listen
from scope_jax.sharding.chips import lists_tpu
from scope_jax.version import __version__

MEMORY = "0.95"  # share of a GPU's memory that JAX takes: what a plan counts on
MEMORY_VARIABLES = (  # jaxlib refuses both names of the share together
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
# Objects that are made before Python looks for cycles. Its own 700 took an eighth of a start: modules are imported and
# programs traced, of which nearly everything stays.
GARBAGE = 50_000
WHAT_FOLLOWS = {  # by command, what the same command does after it was stopped
    **dict.fromkeys(("train", "demo"), "; the same command resumes from the last checkpoint"),
    "index": "; the same command goes on with what was built",
}


BUG = (
    f"what follows is a bug in scope-jax {__version__}, or in how code of yours calls it; please report it with these "
    "lines (CONTRIBUTING.md, Bugs)."
)


class Commands(TyperGroup):
    """Prints user errors as one sentence and exits with code 2; --debug shows the traceback instead.

    Ctrl-C, SIGTERM and SIGHUP print one sentence and exit with code 130, 143 or 129; so does the end of whoever reads
    what the command prints, silently, with 141.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            _refuse(error)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _refuse(error)
        except BrokenPipeError:  # the reader of a list has read enough
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except KeyboardInterrupt as error:
            stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
            after = WHAT_FOLLOWS.get(ctx.invoked_subcommand, "")
            _say(f"{_who()}stopped by {stopped}{after}.")
            raise typer.Exit(stopped.exit_code) from None
        except (typer.Exit, typer.Abort, click.ClickException):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                raise
            if is_users(error):
                _say(f"{_who()}{sentence(error)}")
                raise typer.Exit(2) from None
            if said := _of_memory(error):
                _say(f"{_who()}{said}")
                raise typer.Exit(2) from None
            if _of_backends(error):
                wanted = os.environ.get("JAX_PLATFORMS", "")
                _say(
                    f"scope-jax: JAX finds no device of the platform {wanted!r} that JAX_PLATFORMS asks for; install "
                    "its package (README), or unset the variable.",
                )
                raise typer.Exit(2) from None
            if names := _of_variables(error):
                _say(f"scope-jax: JAX cannot use one of the variables {names} ({error}); correct or unset it.")
                raise typer.Exit(2) from None
            place = culprit(error)
            _say(f"{_who()}{f'your code fails in {place}:' if place else BUG}")
            raise


def _of_memory(error: BaseException) -> str:
    """The sentence for a device without memory, which nothing has named a phase of; "" for other errors."""
    if isinstance(error, MemoryError):
        return "this machine ran out of memory; end other processes, or turn down the sizes that were asked for."
    if "jax" not in sys.modules:
        return ""
    from scope_jax.run.device_memory import is_exhausted, out_of_memory

    return str(out_of_memory(error)) if is_exhausted(error) else ""


def _of_backends(error: BaseException) -> bool:
    """True for an error of JAX where it starts the platforms of JAX_PLATFORMS."""
    frames = traceback.extract_tb(error.__traceback__)
    return "JAX_PLATFORMS" in os.environ and bool(frames) and frames[-1].filename.endswith("jax/_src/xla_bridge.py")


def _of_variables(error: BaseException) -> str:
    """The environment variables of JAX, for an error where it reads them as it is imported; "" for other errors."""
    frames = traceback.extract_tb(error.__traceback__)
    there = isinstance(error, ValueError) and bool(frames) and frames[-1].filename.endswith("jax/_src/config.py")
    return ", ".join(sorted(name for name in os.environ if name.startswith("JAX_"))) if there else ""


def _refuse(error: click.UsageError) -> NoReturn:
    """Prints a wrong use of the command line as one sentence and exits with code 2; a bare command prints its help."""
    if isinstance(error, click.NoArgsIsHelpError):
        raise error
    message = " ".join(error.format_message().split()).removesuffix(".").replace(". Did you mean", "; did you mean")
    command, ctx = "", error.ctx
    while ctx is not None and ctx.parent is not None:
        command, ctx = f" {ctx.info_name}{command}", ctx.parent
    see = " See" if message.endswith("?") else "; see"
    _say(f"scope-jax: {message[0].lower()}{message[1:]}{see} scope-jax{command} --help.")
    raise typer.Exit(2) from None


def _say(text: str) -> None:
    """The last words of a command, which somebody may read."""
    with suppress(BrokenPipeError):
        typer.echo(without_passwords(text), err=True)


def _who() -> str:
    """What a message about the end of this process begins with."""
    from scope_jax.run.processes import prefix

    return prefix()


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",  # as rich markup, square brackets would vanish
    pretty_exceptions_enable=False,
    help="Self-play post-training of language models in JAX.",
)


def run() -> None:
    """The `scope-jax` program."""
    any_character()
    ending_program()
    listen()
    try:
        app()
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        if code and isinstance(code, int):
            bound(code)
        if "--debug" not in sys.argv:
            sys.excepthook = show  # typer sets its own when it begins
        if "scope_jax.run.processes" in sys.modules:  # it joins processes, and imports JAX
            from scope_jax.run.processes import leave

            leave(error)
        raise
    finally:
        if "scope_jax.web.exchange" in sys.modules:
            from scope_jax.web.exchange import abandon

            abandon()  # threads waiting for a server would keep the process alive


def any_character() -> None:
    """Lets a terminal show any text, escaped where its encoding lacks it, and give any bytes, wrong ones as U+FFFD."""
    for stream, instead in ((sys.stdout, "backslashreplace"), (sys.stdin, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=instead)


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"scope-jax {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of user errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Self-play post-training of language models in JAX."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError(
            "the current folder has been deleted; change to one that exists, then run this again."
        ) from None
    quiet_libtpu()
    take_memory()
    gc.set_threshold(GARBAGE)
    # XLA's log lines, such as its alarm about slow compilation: what fails is raised, and a run says what it does.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else a process that is forked later prints a warning
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # else each try to reach the hub is a line before our sentence
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # a command shows its own progress
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch, which is not used, is not there


def take_memory() -> None:
    """Lets JAX take as much of a GPU's memory as plans count on, unless the user has said how much; its own is 75 %."""
    if not any(os.environ.get(name) for name in MEMORY_VARIABLES):
        os.environ["XLA_CLIENT_MEM_FRACTION"] = MEMORY


def quiet_libtpu() -> None:
    """Silences libtpu on machines without a TPU, where it may be installed for ahead-of-time compilation.

    JAX tries every platform it finds; libtpu then queries its TPU slice and prints a page of errors before JAX tries
    the next one. The variables answer that query. They are set only if there is no TPU device file.
    """
    if not lists_tpu():
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
