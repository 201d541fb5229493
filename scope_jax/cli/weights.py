"""Commands that write weights: export, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from scope_jax.cli.options import Json, RunFolder
from scope_jax.cli.output import check_folder, check_local, check_run, console, show
from scope_jax.cli.program import app
from scope_jax.errors import UserError


@app.command()
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Hugging Face folder to write.")],
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Dtype of the written weights; float32 is lossless [default: the base model's]."),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="For a run of adapters, write whole weights instead of the adapter alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the trained weights as a Hugging Face folder: config.json, safetensors, tokenizer, chat template.

    A run of adapters is written in PEFT's format, adapter_config.json and adapter_model.safetensors, or merged.
    """
    check_local(run)
    check_run(run)
    if not (run / "config.toml").is_file():
        raise UserError(f"{run} is not a run folder (it has no config.toml); give the folder passed to train as --run.")
    from scope_jax.run.convert import export_dtype

    chosen, sentence = (dtype, "") if dtype is not None else export_dtype(run, merge)
    _convert(run, folder, "hf", chosen, None, as_json, merge, sentence)


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
    check_folder(source, "a run, one of its checkpoints or a model folder")
    _convert(source, folder, to, dtype, policy, as_json)


def _convert(
    source: Path,
    folder: Path,
    layout: Literal["hf", "orbax"],
    dtype: str | None,
    policy: str | None,
    as_json: bool,
    merge: bool = False,
    sentence: str = "",
) -> None:
    """Writes the weights, then says the sentence, if there is one, and the results."""
    from scope_jax.report.progress import Progress
    from scope_jax.run.convert import convert as write

    with Progress(console()) as progress:
        results = write(source, folder, layout, dtype, policy, progress.part, merge)
        if sentence:
            progress.say(sentence)
    show(results, as_json)
