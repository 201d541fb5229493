"""Commands that train a card, or compile it to see whether it fits: train, plan, demo."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_jax.cli.options import Card, Json, RunPlace, Sets, load
from scope_jax.cli.output import check_local, console, show, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError
from scope_jax.files import replaced

if TYPE_CHECKING:
    from scope_jax.config import Config

DEMO_CARD = Path("ssp/atlas")  # a shipped card


@app.command()
def train(
    card: Card,
    run: RunPlace,
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
        typer.Option(
            metavar="STEP", min=1, help="Write a profiler trace of this step to the folder profile of the run."
        ),
    ] = None,
    accept_inputs: Annotated[
        bool, typer.Option("--accept-inputs", help="Go on although data, prompts or other files of the run changed.")
    ] = False,
    schedule: Annotated[
        Path | None,
        typer.Option("--schedule", metavar="RUN", help="Repeat when the weights of another run's steps changed."),
    ] = None,
    plan_first: Annotated[
        bool, typer.Option("--plan-first", help="Refuse at once a card that does not fit this machine; see `plan`.")
    ] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Train the policies of CARD. Run the same command again to resume from the last checkpoint.

    In a TPU pod, a SLURM step or with JAX_COORDINATOR_ADDRESS, all processes train together (docs/launch.md).
    """
    sets = set_ or []
    begins = [] if origin is None else [f"train.origin={json.dumps(origin, ensure_ascii=False)}"]
    cfg = load(card, [*sets, *begins])
    from scope_jax.run.processes import joined, writes

    with joined():
        if plan_first:
            from scope_jax.plan.command import refuse_early
            from scope_jax.plan.hardware import hardware

            refuse_early(card, sets, hardware(None), tell)
        from scope_jax.report.page import write_report
        from scope_jax.report.progress import Progress
        from scope_jax.report.usage import used
        from scope_jax.run.mirror import run_folder
        from scope_jax.train import train as loop

        with Progress(console()) as progress, run_folder(run, Path(cfg.train.spool), progress.say) as (folder, mirror):

            def before(here: Config) -> None:
                model = f"model.checkpoint={json.dumps(here.model.checkpoint, ensure_ascii=False)}"
                _plan_here(card, [*sets, model], folder, progress.say)

            results = loop(cfg, folder, progress, profile, mirror, accept_inputs, before, schedule)
            if writes():
                progress.say(f"curves and episodes: {write_report(folder)}")
                progress.say(used(folder))
        if writes():
            show(results | {"run": run}, as_json)


def _plan_here(card: Path, sets: Sequence[str], folder: Path, say: Callable[[str], None]) -> None:
    """Plans the card on this machine by arithmetic: says what it takes, keeps the outline in the run folder."""
    from scope_jax.plan.command import at_start, outline, statements
    from scope_jax.plan.hardware import started
    from scope_jax.report.usage import PLAN
    from scope_jax.run.files import write_json
    from scope_jax.run.processes import by_one, writes

    devices = started()  # by all processes: JAX waits for the devices of each
    found = by_one(lambda: at_start(card, sets, devices))
    if found is None:
        return
    for sentence in statements(found):
        say(sentence)
    if writes():
        with replaced(folder / PLAN) as partial:
            write_json(partial, outline(found))


def _on_given_answers(system: str, description: str) -> None:
    """The command that trains a card of this system: `train`, which does the same."""

    @app.command(system, help=description)
    def command(
        card: Card,
        run: RunPlace,
        plan_first: Annotated[
            bool, typer.Option("--plan-first", help="Refuse at once a card that does not fit this machine; see `plan`.")
        ] = False,
        set_: Sets = None,
        as_json: Json = False,
    ) -> None:
        if (found := load(card, set_).system) != system:
            raise UserError(
                f"{card} has system = {found!r}, but this command is for {system!r}; use scope-jax train instead."
            )
        train(card, run, plan_first=plan_first, set_=set_, as_json=as_json)


_on_given_answers("sft", 'Train on the conversations of CARD (system = "sft"). Run it again to resume.')
_on_given_answers("dpo", 'Train on the preference pairs of CARD (system = "dpo"). Run it again to resume.')


@app.command()
def plan(
    card: Card,
    on: Annotated[
        str | None,
        typer.Option(metavar="HARDWARE", help="v5p:4x4x4, 8xH100, ...; it need not be here [default: this one]."),
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model's config.json, or its folder, if the card's is not here."),
    ] = None,
    index: Annotated[
        str | None, typer.Option(metavar="PASSAGESxWIDTH", help="Vectors of a search index that is not built yet.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Compile every bucket, and the engine with all layers (minutes each).")
    ] = False,
    remat: Annotated[
        bool, typer.Option("--remat", help="Compare every value of learner.remat, and name the fastest that fits.")
    ] = False,
    overlapping: Annotated[
        str | None,
        typer.Option(
            "--async",
            metavar="RUN|EPISODES:READ:SAMPLED",
            help="Simulate steps that overlap, with episodes of a run, or of so many tokens.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="By arithmetic alone, in seconds: nothing is compiled, no device started.")
    ] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Compile the programs of CARD without running them: memory, FLOPs, collectives; what fits if the card does not."""
    load(card, set_)
    if quick and whole:
        raise UserError("--whole compiles programs, and --quick none; leave one of them out.")
    from scope_jax.plan.hardware import hardware, prepare

    here = hardware(on, compiled=False) if quick else None
    if quick or on is not None:
        prepare()
    from scope_jax.plan.command import plan as make
    from scope_jax.plan.page import lines

    sets = set_ or []
    options: dict[str, Any] = {"model_config": model_config, "index": index, "whole": whole, "remat": remat}
    options["overlapping"] = overlapping
    found = make(card, sets, here or hardware(on), **options, tell=tell)
    for line in lines(found):
        typer.echo(line, err=as_json)
    if as_json:
        typer.echo(json.dumps(found))


@app.command()
def demo(
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Run folder [default: runs/demo-seed0 for seed 0].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 5,
) -> None:
    """Train Search Self-play on Atlas, the embedded world, and print held-out accuracy before and after."""
    # Fewer steps than the card's eight, larger ones of fewer questions, and the exam's questions once, not three times.
    once = 'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl"}]'
    fewer = [f"train.steps={steps}", "train.batch_size=28", "optimizer.learning_rate=9e-5", once]
    cfg = load(DEMO_CARD, [f"seed={seed}", *fewer])
    from scope_jax.report.page import write_report
    from scope_jax.report.progress import Progress
    from scope_jax.train import train as loop

    folder = run or Path("runs") / f"demo-seed{seed}"
    check_local(folder)
    with Progress(console()) as progress:
        progress.say(f"Search Self-play on Atlas: {cfg.train.steps} steps, seed {seed}, run folder {folder}")
        results = loop(cfg, folder, progress)
    held_out = f"eval/{cfg.evaluate.sets[0].name}/accuracy"
    before, after = results["before"][held_out], results["after"][held_out]
    typer.echo(f"held-out accuracy before {100 * before:5.1f} %")
    typer.echo(f"held-out accuracy after  {100 * after:5.1f} %   ({100 * (after - before):+.1f} points)")
    typer.echo(f"curves and episodes      {write_report(folder)}")
    summary = {"held_out_before": before, "held_out_after": after, "seconds": results["seconds"], "run": str(folder)}
    typer.echo(json.dumps(summary))
