"""The command line: reads cards and arguments, calls one function for each command, turns errors into sentences.

Everything heavy is imported inside the command that needs it, so that `--help` is quick and a broken card is found
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

from scope_jax.errors import UserError, is_users, sentence
from scope_jax.run.stopping import Stopped, listen

if TYPE_CHECKING:
    from scope_jax.config import Config

DEMO_CARD = Path("configs/ssp/atlas.toml")


class Commands(TyperGroup):
    """A mistake of the user ends in one sentence and exit code 2; --debug shows the traceback instead.

    Ctrl-C and SIGTERM end in one sentence and 130 or 143.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            from retrieval.exchange import abandon

            abandon()  # threads that wait for a server would keep the process
            stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
            typer.echo(f"scope-jax: stopped by {stopped}; the same command goes on from the last checkpoint.", err=True)
            raise typer.Exit(stopped.exit_code) from None
        except (UserError, OSError, ValueError) as error:
            if ctx.params["debug"] or not is_users(error):
                raise
            typer.echo(f"scope-jax: {sentence(error)}", err=True)
            raise typer.Exit(2) from None


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
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
Run = Annotated[Path, typer.Option("--run", metavar="DIR", help="Folder of the run; a run that is in there goes on.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key of the card, e.g. --set train.steps=10. Repeatable."
    ),
]
Base = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Model folder that judges where the game's judge is the base; the card's model otherwise."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object on the last line.")]


def run() -> None:
    """The program `scope-jax`."""
    listen()
    app()


@app.callback()
def main(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """Options before the command."""
    quiet_libtpu()


def quiet_libtpu() -> None:
    """Keeps a libtpu that is there for ahead-of-time compilation from complaining on a machine without a TPU.

    JAX tries every platform it finds; libtpu then asks for the slice it belongs to and prints a page of errors before
    JAX goes on with the next one. The variables answer in advance. They are set only where no TPU device file exists.
    """
    if not any(any(Path("/dev").glob(pattern)) for pattern in ("accel[0-9]*", "vfio/[0-9]*")):
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def _card(path: Path, overrides: list[str] | None) -> Config:
    from scope_jax.config import load_card

    return load_card(path, overrides or ())


def _console() -> Console:
    # Results go to standard output, everything that is said on the way to standard error.
    return Console(stderr=True, highlight=False)


def _tell(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _print(results: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(results))
        return
    for key, value in _flat(results):
        typer.echo(f"{key:<36} {value:.4g}" if isinstance(value, float) else f"{key:<36} {value}")


def _flat(results: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in results.items():
        rows += _flat(value, f"{prefix}{key} ") if isinstance(value, dict) else [(prefix + key, value)]
    return rows


@app.command()
def train(
    card: Card,
    run: Run,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN[@STEP]", help="Begin with the state of another run, at its newest or another step."
        ),
    ] = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Train the policies of CARD; the same command after a kill goes on from the last checkpoint."""
    cfg = _card(card, [*(set_ or []), *([] if origin is None else [f"train.origin={json.dumps(origin)}"])])
    from scope_jax.report.page import write_report
    from scope_jax.report.progress import Progress
    from scope_jax.train import train as loop

    with Progress(_console()) as progress:
        results = loop(cfg, run, progress)
        progress.say(f"curves and episodes: {write_report(run)}")
    _print(results, as_json)


@app.command()
def demo(
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Folder of the run [runs/demo-seed<N>].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Training steps; the card's otherwise.")] = None,
) -> None:
    """Play Search Self-play on Atlas, the embedded world; print held-out accuracy before and after."""
    if not DEMO_CARD.is_file():
        raise UserError(f"there is no {DEMO_CARD} here; run the demo in the folder of the scope-jax checkout.")
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


@app.command("eval")
def evaluate(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT_OR_RUN", help="Run folder, one of its checkpoints, or a Hugging Face folder."
        ),
    ],
    card: Annotated[Path | None, typer.Option(help="Card with the evaluation sets; the run's own otherwise.")] = None,
    base: Base = None,
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every question with its episode here, as JSON lines.")
    ] = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Answer the card's evaluation sets with the weights of a run, a checkpoint or a Hugging Face folder."""
    if not target.is_dir():
        raise UserError(f"there is no folder {target}; give a run, one of its checkpoints or a Hugging Face folder.")
    if records is not None:
        _check_place(records)
    from scope_jax.evaluate import evaluate_target

    partial = None if records is None else records.with_name(records.name + ".partial")

    def keep(name: str, rows: list[dict[str, Any]], metrics: dict[str, float]) -> None:
        found = ", ".join(f"{key.rpartition('/')[2]} {value:.4g}" for key, value in metrics.items())
        _tell(f"{name}: {found}")
        if partial is not None:
            with partial.open("a" if kept else "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"set": name, **row}, ensure_ascii=False) + "\n" for row in rows)
        kept.append(name)

    kept: list[str] = []
    _print(evaluate_target(target, card, base, set_ or [], keep, _tell), as_json)
    if records is not None and partial is not None:
        os.replace(partial, records)


@app.command()
def replay(
    searcher: Annotated[
        Path, typer.Argument(metavar="SEARCHER", help="Run of SCOPE, checkpoint or model folder that searches.")
    ],
    writer: Annotated[Path, typer.Argument(metavar="WRITER", help="The same, that writes the answers.")],
    card: Annotated[Path | None, typer.Option(help="Card with the evaluation sets; the searcher's otherwise.")] = None,
    base: Base = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Answer evaluation sets with the searches of one checkpoint and the answers of another (SCOPE Table 4)."""
    for folder in (searcher, writer):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give a run of scope, a checkpoint or a Hugging Face folder.")
    from scope_jax.analyses.scope_replay import replay as play_again

    _print(play_again(searcher, writer, card, base, set_ or [], _tell), as_json)


@app.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Hugging Face folder to write.")],
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of the written weights; float32 keeps every bit.")
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Write the trained weights as a Hugging Face folder: config.json, safetensors, tokenizer, chat template."""
    if not run.is_dir():
        raise UserError(f"there is no run folder {run}; give the folder that was --run of a training.")
    if not (run / "config.toml").is_file():
        raise UserError(f"{run} is no run folder (it has no config.toml); give the one named with --run in training.")
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
        Literal["hf", "orbax"], typer.Option(help="Layout: Hugging Face, or our own, from which a card starts quickly.")
    ],
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Of the written weights; as the source has them otherwise."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a run with several policies; otherwise each is written.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write weights in another layout or dtype, with tokenizer and chat template; the same dtype keeps every bit."""
    if not source.is_dir():
        raise UserError(f"there is no folder {source}; give a run, one of its checkpoints or a model folder.")
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
        bool, typer.Option("--clusters", help="Make clusters of documents instead, as CARD's table clusters says.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Delete what is there, and start anew.")] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Build the search index that CARD names (retrieval.index), or its clusters; what was stopped goes on."""
    cfg = _card(card, set_)
    if clusters:
        _prepare_clusters(cfg, rebuild, as_json)
        return
    if (retrieval := cfg.retrieval) is None or retrieval.index is None:
        raise UserError(f"{card} names no index folder; add retrieval.index to it or --set retrieval.index=DIR.")
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
            progress.say(f"the clusters in {cfg.clusters.folder} are finished; there is nothing to do")
    told = {key: value for key, value in found.items() if key not in ("sources", "examples")}
    _print({"folder": cfg.clusters.folder, **told, "seconds": time.monotonic() - began}, as_json)


@app.command()
def report(run: RunFolder, as_json: Json = False) -> None:
    """Draw the curves of a run and write its page, report/index.html in the run folder."""
    from scope_jax.report.page import write_report
    from scope_jax.run.metrics import torn

    if not run.is_dir():
        raise UserError(f"there is no run folder {run}; give the folder that was --run of a training.")
    page = write_report(run)
    for told in torn(run):
        _tell(f"scope-jax: {told}")
    _print({"page": str(page)}, as_json)


def _check_place(path: Path) -> None:
    """Raises UserError for a file that could not be written."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file.")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UserError(
            f"{path} cannot be written: {path.parent} is no folder, or not yours to write in; name another."
        )
