"""The command line: parses arguments, loads cards, runs commands, prints user errors in one sentence.

Heavy imports are inside the commands that need them, so that `--help` is quick and an invalid card is reported
before JAX starts.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from typer.core import TyperGroup

from scope_jax.commands import data, exams
from scope_jax.commands.output import show as _print
from scope_jax.commands.output import tell as _tell
from scope_jax.errors import UserError, is_users, sentence
from scope_jax.run.stopping import Stopped, listen

if TYPE_CHECKING:
    from scope_jax.config import Config

DEMO_CARD = Path("configs/ssp/atlas.toml")


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

Card = Annotated[
    Path, typer.Argument(metavar="CARD", help="Experiment card, a TOML file such as configs/ssp/atlas.toml.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
Run = Annotated[Path, typer.Option("--run", metavar="DIR", help="Run folder; an existing run in it is resumed.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key of the card, e.g. --set train.steps=10. Repeatable."
    ),
]
Base = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Model folder of the base model that judges, if the game has one [default: the card's model].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object on the last line.")]


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


def _card(path: Path, overrides: list[str] | None) -> Config:
    from scope_jax.config import load_card

    return load_card(path, overrides or ())


def _console() -> Console:
    # Results go to standard output, progress and messages to standard error; of several processes, one shows them.
    from scope_jax.run.processes import writes

    return Console(stderr=True, highlight=False, quiet=not writes())


@app.command()
def train(
    card: Card,
    run: Run,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[@STEP]",
            help="Start from the state of another run, at its newest or the given checkpoint.",
        ),
    ] = None,
    profile: Annotated[
        int | None,
        typer.Option(metavar="STEP", min=1, help="Write a profiler trace of this step to <run>/profile."),
    ] = None,
    plan_first: Annotated[
        bool, typer.Option("--plan-first", help="Refuse at once a card that does not fit this machine; see `plan`.")
    ] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Train the policies of CARD. Run the same command again to resume from the last checkpoint.

    In a TPU pod, a SLURM step or with JAX_COORDINATOR_ADDRESS, all processes train together (docs/multi_process.md).
    """
    cfg = _card(card, [*(set_ or []), *([] if origin is None else [f"train.origin={json.dumps(origin)}"])])
    from scope_jax.run.processes import joined, writes

    with joined():
        if plan_first:
            from scope_jax.plan.command import refuse_early
            from scope_jax.plan.hardware import hardware

            refuse_early(card, set_ or [], hardware(None), _tell)
        from scope_jax.report.page import write_report
        from scope_jax.report.progress import Progress
        from scope_jax.train import train as loop

        with Progress(_console()) as progress:
            results = loop(cfg, run, progress, profile)
            if writes():
                progress.say(f"curves and episodes: {write_report(run)}")
        if writes():
            _print(results, as_json)


@app.command()
def plan(
    card: Card,
    on: Annotated[
        str | None,
        typer.Option(metavar="HARDWARE", help="v5p:4x4x4, 8xH100, ...; it need not be here [default: this one]."),
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's config.json, if its folder is not here.")
    ] = None,
    index: Annotated[
        str | None, typer.Option(metavar="PASSAGESxWIDTH", help="Vectors of a search index that is not built yet.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Compile every bucket, and the engine with all layers (minutes each).")
    ] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Compile the programs of CARD without running them: memory, FLOPs, collectives; what fits if the card does not."""
    _card(card, set_)
    from scope_jax.plan.hardware import hardware, prepare

    prepare(on)
    from scope_jax.plan.command import plan as make
    from scope_jax.plan.page import lines

    sets = set_ or []
    found = make(card, sets, hardware(on), model_config=model_config, index=index, whole=whole, tell=_tell)
    for line in lines(found):
        typer.echo(line, err=as_json)
    if as_json:
        typer.echo(json.dumps(found))


@app.command()
def demo(
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Run folder [default: runs/demo-seed<N>].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps [default: the card's].")] = None,
) -> None:
    """Train Search Self-play on Atlas, the embedded world, and print held-out accuracy before and after."""
    if not DEMO_CARD.is_file():
        raise UserError(f"{DEMO_CARD} does not exist here; run the demo from the root of the scope-jax checkout.")
    cfg = _card(DEMO_CARD, [f"seed={seed}"] + ([] if steps is None else [f"train.steps={steps}"]))
    from scope_jax.report.page import write_report
    from scope_jax.report.progress import Progress
    from scope_jax.train import train as loop

    folder = run or Path("runs") / f"demo-seed{seed}"
    with Progress(_console()) as progress:
        progress.say(f"Search Self-play on Atlas: {cfg.train.steps} steps, seed {seed}, run folder {folder}")
        results = loop(cfg, folder, progress)
    held_out = f"eval/{cfg.evaluate.sets[0].name}/accuracy"
    before, after = results["before"][held_out], results["after"][held_out]
    typer.echo(f"held-out accuracy before {100 * before:5.1f} %")
    typer.echo(f"held-out accuracy after  {100 * after:5.1f} %   ({100 * (after - before):+.1f} points)")
    typer.echo(f"curves and episodes      {write_report(folder)}")
    summary = {"held_out_before": before, "held_out_after": after, "seconds": results["seconds"], "run": str(folder)}
    typer.echo(json.dumps(summary))


app.command("eval")(exams.evaluate)
app.command("data")(data.data)


@app.command()
def replay(
    searcher: Annotated[
        Path, typer.Argument(metavar="SEARCHER", help="SCOPE run, checkpoint or model folder that searches.")
    ],
    writer: Annotated[
        Path, typer.Argument(metavar="WRITER", help="SCOPE run, checkpoint or model folder that writes the answers.")
    ],
    card: Annotated[Path | None, typer.Option(help="Card with the evaluation sets [default: the searcher's].")] = None,
    base: Base = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Answer evaluation sets with the searches of one checkpoint and the answers of another (SCOPE Table 4)."""
    for folder in (searcher, writer):
        if not folder.is_dir():
            raise UserError(
                f"the folder {folder} does not exist; give a SCOPE run, a checkpoint or a Hugging Face folder."
            )
    from scope_jax.analyses.scope_replay import replay as play_again

    _print(play_again(searcher, writer, card, base, set_ or [], _tell), as_json)


@app.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Hugging Face folder to write.")],
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Dtype of the written weights; float32 is lossless.")
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Write the trained weights as a Hugging Face folder: config.json, safetensors, tokenizer, chat template."""
    if not run.is_dir():
        raise UserError(f"the run folder {run} does not exist; give the folder passed to train as --run.")
    if not (run / "config.toml").is_file():
        raise UserError(f"{run} is not a run folder (it has no config.toml); give the folder passed to train as --run.")
    _convert(run, folder, "hf", dtype, None, as_json)


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Run folder, one of its checkpoints, or a model folder of either layout."
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder to write.")],
    to: Annotated[
        Literal["hf", "orbax"], typer.Option(help="Layout: Hugging Face, or orbax, which starts runs faster.")
    ],
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Dtype of the written weights [default: the source's]."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Policy to write, of a run with several [default: all].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write weights in another layout or dtype, with tokenizer and chat template; lossless if the dtype stays."""
    if not source.is_dir():
        raise UserError(f"the folder {source} does not exist; give a run, one of its checkpoints or a model folder.")
    _convert(source, folder, to, dtype, policy, as_json)


def _convert(
    source: Path,
    folder: Path,
    layout: Literal["hf", "orbax"],
    dtype: Literal["float32", "bfloat16"] | None,
    policy: str | None,
    as_json: bool,
) -> None:
    from scope_jax.report.progress import Progress
    from scope_jax.run.convert import convert as write

    with Progress(_console()) as progress:
        results = write(source, folder, layout, dtype, policy, progress.part)
    _print(results, as_json)


@app.command()
def index(
    card: Card,
    clusters: Annotated[
        bool, typer.Option("--clusters", help="Build clusters of documents instead, as set in [clusters] of CARD.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Delete existing output and rebuild it.")] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Build the search index of CARD (retrieval.index), or its clusters; an interrupted build is resumed."""
    cfg = _card(card, set_)
    if clusters:
        _prepare_clusters(cfg, rebuild, as_json)
        return
    if (retrieval := cfg.retrieval) is None or retrieval.index is None:
        raise UserError(f"{card} has no index folder; add retrieval.index to it or pass --set retrieval.index=DIR.")
    from scope_jax.report.progress import Progress
    from scope_jax.run.indexing import index_mesh, open_or_build_index

    began = time.monotonic()
    with Progress(_console()) as progress:
        progress.say(f"indexing {retrieval.corpus} in {retrieval.index}")
        retriever = open_or_build_index(retrieval, Path(retrieval.index), index_mesh(), progress.part, rebuild)
    seconds = time.monotonic() - began
    results = {"index": retrieval.index, "passages": len(retriever.corpus), "seconds": seconds}
    _print(results, as_json)


def _prepare_clusters(cfg: Config, rebuild: bool, as_json: bool) -> None:
    from scope_jax.report.progress import Progress
    from scope_jax.run.clustering import prepare_clusters
    from scope_jax.run.indexing import index_mesh

    began = time.monotonic()
    worked = False

    def part(name: str, done: int, total: int) -> None:
        nonlocal worked
        worked = True
        progress.part(name, done, total)

    with Progress(_console()) as progress:
        found = prepare_clusters(cfg, index_mesh(), part, rebuild)
        if not worked:
            progress.say(f"the clusters in {cfg.clusters.folder} are complete; nothing to do")
    shown = {key: value for key, value in found.items() if key not in ("sources", "examples")}
    _print({"folder": cfg.clusters.folder, **shown, "seconds": time.monotonic() - began}, as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folder, or several to be compared.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the report on this machine and renew it while the run goes on.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --watch; 0: a free one.")] = 0,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Page to write for a comparison [default: comparison.html in the first report]."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write report/index.html in the run folder: curves, episodes. Of several runs, write a page that compares them."""
    from scope_jax.run.metrics import torn

    for run in runs:
        if not run.is_dir():
            raise UserError(f"the run folder {run} does not exist; give the folder passed to train as --run.")
    if to is not None and len(runs) == 1:
        raise UserError("--to is for a comparison; give several runs, or leave it out.")
    if watch:
        if len(runs) > 1:
            raise UserError("--watch shows one run; give one run folder.")
        from scope_jax.report.live import watch as serve

        serve(runs[0], port, _tell)
        return
    if len(runs) > 1:
        from scope_jax.report.comparison import write_comparison

        page = write_comparison(runs, to or runs[0] / "report" / "comparison.html")
    else:
        from scope_jax.report.page import write_report

        page = write_report(runs[0])
    for run in runs:
        for warning in torn(run):
            _tell(f"scope-jax: {warning}")
    _print({"page": str(page)}, as_json)
