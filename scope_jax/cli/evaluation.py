"""Commands that answer evaluation sets and suites, and prepare data: eval, data, replay."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_jax.cli.data import data
from scope_jax.cli.options import Base, Json, Sets, load
from scope_jax.cli.output import WEIGHTS, check_folder, check_place, show, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError, writing
from scope_jax.files import alone

if TYPE_CHECKING:
    from scope_jax.config import JudgeSection
    from scope_jax.config.suites import SuiteCard

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Run folder, one of its checkpoints, a Hugging Face folder, or with --exam or --paper the URL of an "
        "OpenAI-compatible endpoint.",
    ),
]
Exams = Annotated[
    list[str] | None,
    typer.Option(
        "--exam", metavar="NAME", help="A benchmark, a file in configs/exams, instead of the card's sets. Repeatable."
    ),
]
Paper = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="A game of configs/exams/papers: its paper's benchmarks as it used them, and its tables."
    ),
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with the rows of exams [default: data/exams].")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many questions of each exam, a random subset.")]
Measures = Annotated[
    list[str] | None,
    typer.Option("--measure", metavar="NAME", help="Measure for the exams, instead of their own. Repeatable."),
]
Samples = Annotated[int | None, typer.Option(min=1, metavar="N", help="Answers to each question of the exams.")]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Most tokens of an answer (thinking models need more).")
]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Most tokens of a prompt with a document, which is cut.")
]
Temperature = Annotated[float | None, typer.Option(min=0, metavar="T", help="Sampling temperature of the exams.")]
TopP = Annotated[float | None, typer.Option(max=1, metavar="P", help="Nucleus sampling of the exams.")]
TopK = Annotated[int | None, typer.Option(min=0, metavar="K", help="Sample from this many tokens; 0: from all.")]
ModelName = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Name of the model at an endpoint.")]
KeyVariable = Annotated[str | None, typer.Option(metavar="NAME", help="Environment variable with the endpoint's key.")]
CardOfSets = Annotated[Path | None, typer.Option(help="Card with the evaluation sets [default: the run's].")]
RecordsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write every question and its episode to this file, as JSON Lines.")
]

app.command("data")(data)


@app.command("eval")
def evaluate(
    target: Target,
    exam: Exams = None,
    paper: Paper = None,
    data: Data = None,
    limit: Limit = None,
    measure: Measures = None,
    samples: Samples = None,
    max_tokens: MaxTokens = None,
    prompt_tokens: PromptTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    model: ModelName = None,
    api_key_env: KeyVariable = None,
    card: CardOfSets = None,
    base: Base = None,
    records: RecordsFile = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Answer a card's evaluation sets, or benchmarks, with the weights of a run, a checkpoint or a Hugging Face folder,
    or with a model behind an endpoint."""
    keys = {"samples": samples, "max_tokens": max_tokens, "prompt_tokens": prompt_tokens, "temperature": temperature}
    given = {key: value for key, value in (keys | {"top_p": top_p, "top_k": top_k}).items() if value is not None}
    suites = _suites(exam or [], paper, data, limit, measure or [], given)
    _check_target(target, bool(suites), card, base, model, api_key_env)
    _check_rows(suites)
    if records is not None:
        check_place(records)

    def run(keep: Callable[..., None]) -> dict[str, Any]:
        if _is_url(target):
            from scope_jax.evaluation.endpoint import evaluate_endpoint

            endpoint = _endpoint(target, model, api_key_env)
            return evaluate_endpoint(endpoint, suites, set_ or [], keep, tell, frozenset(given))
        from scope_jax.evaluation.evaluate import evaluate_model

        return evaluate_model(Path(target), card, base, set_ or [], keep, tell, suites, frozenset(given))

    _with_records(run, records, lambda results: _report(results, suites, paper, as_json))


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


def _endpoint(url: str, model: str | None, api_key_env: str | None) -> JudgeSection:
    from scope_jax.config import JudgeSection, parse_section

    table = {"url": url, "model": model, "api_key_env": api_key_env, "timeout": 600.0}
    return parse_section(JudgeSection, table, "the options of this command")


def _check_target(
    target: str, suites: bool, card: Path | None, base: Path | None, model: str | None, api_key_env: str | None
) -> None:
    """Raises UserError for a target that does not exist, or options that do not apply to it."""
    if not _is_url(target):
        check_folder(Path(target), WEIGHTS)
        if model is not None or api_key_env is not None:
            raise UserError(f"--model and --api-key-env are for endpoints, and {target} is a folder; remove them.")
        return
    if not suites:
        raise UserError(f"{target} is an endpoint, which has no card; name benchmarks with --exam or --paper.")
    if model is None:
        raise UserError(f"{target} is an endpoint; give the name of its model with --model.")
    if card is not None or base is not None:
        raise UserError(f"{target} is an endpoint, which plays no game; remove --card and --base.")


def _suites(
    names: Sequence[str],
    paper: str | None,
    data: Path | None,
    limit: int | None,
    measures: Sequence[str],
    given: Mapping[str, Any],
) -> list[SuiteCard]:
    """The wanted suites, with the options applied to them; given: options that replace a key of the same name.

    Raises CardError or UserError.
    """
    from scope_jax.config import parse_section
    from scope_jax.config.suites import SuiteCard, load_suite, suites_of

    chosen = _paper(paper)
    if not names and chosen is None:
        used = {"data": data, "limit": limit, "measure": measures or None} | dict(given)
        if option := next((name for name, value in used.items() if value is not None), None):
            raise UserError(f"--{option.replace('_', '-')} is for benchmarks; name some with --exam or --paper.")
        return []
    if len(set(names)) < len(names):
        raise UserError(f"--exam {max(names, key=list(names).count)} is there twice; give each exam once.")
    suites = [load_suite(name, chosen) for name in names] if names else list(suites_of(chosen)) if chosen else []
    if "prompt_tokens" in given and not any(suite.form == "document" for suite in suites):
        raise UserError("--prompt-tokens cuts documents, which none of these exams has; remove it.")
    changed = []
    for suite in suites:
        changes = {key: value for key, value in given.items() if key != "prompt_tokens" or suite.form == "document"}
        if data is not None:
            changes["path"] = str(data / Path(suite.path).name)
        if limit is not None:
            changes["limit"] = min(limit, suite.limit or limit)
        if measures:
            changes["measures"] = tuple(measures)
        table = suite.model_dump(exclude_unset=True) | changes
        changed.append(parse_section(SuiteCard, table, f"the exam {suite.name}"))
    return changed


def _check_rows(suites: Sequence[SuiteCard]) -> None:
    """Raises UserError for an exam whose file of rows is not here."""
    for suite in suites:
        if suite.path.endswith(".jsonl") and not Path(suite.path).exists():
            raise UserError(
                f"{suite.path} does not exist; write the rows of the exam with scope-jax data {suite.name} "
                f"{suite.path}, or give their folder with --data."
            )


def _paper(name: str | None) -> str | None:
    from scope_jax.config.suites import papers

    if name is not None and name not in papers():
        raise UserError(f"--paper is {name!r}; give one of {', '.join(papers())}.")
    return name


def _with_records(
    run: Callable[[Callable[..., None]], dict[str, Any]],
    records: Path | None,
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Runs the evaluation; the records of each finished set are in FILE.partial until all are finished. Meanwhile no
    other process may write FILE."""
    from scope_jax.run.processes import by_one, joined, writes

    partial = None if records is None else records.with_name(records.name + ".partial")
    kept: list[str] = []

    def keep(name: str, rows: list[dict[str, Any]], metrics: dict[str, float]) -> None:
        if not writes():
            return
        values = ", ".join(f"{key.rpartition('/')[2]} {value:.4g}" for key, value in metrics.items())
        tell(f"{name}: {values}")
        if partial is not None and records is not None:
            with writing(records), partial.open("a" if kept else "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"set": name, **row}, ensure_ascii=False) + "\n" for row in rows)
        kept.append(name)

    with joined(), ExitStack() as held:
        if records is not None:
            by_one(lambda: held.enter_context(alone(records)))
        results = run(keep)
        if writes():
            report(results)
        if records is not None and partial is not None and writes():
            os.replace(partial, records)


def _report(results: dict[str, Any], suites: Sequence[SuiteCard], paper: str | None, as_json: bool) -> None:
    """Prints the results; with a paper, its tables with ours in the last row, to standard error with --json."""
    chosen = _paper(paper)
    if chosen is not None:
        from scope_jax.config.suites import load_figures
        from scope_jax.report.papers import lines, tables

        results = results | {"tables": tables(load_figures(chosen), suites, results["metrics"])}
        for table in results["tables"]:
            typer.echo("\n".join([*lines(table, "this model"), ""]), err=as_json)
    show(results if as_json else {key: value for key, value in results.items() if key != "tables"}, as_json)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run; with WRITER also a checkpoint or model folder.")],
    writer: Annotated[
        Path | None,
        typer.Argument(metavar="WRITER", help="Run, checkpoint or folder that answers after RUN's searches."),
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=1, help="The step that is played again.")] = None,
    card: Annotated[Path | None, typer.Option(help="Card with the evaluation sets [default: that of RUN].")] = None,
    base: Base = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Play a step of RUN again from its record, with tools and graders off, and compare its episodes (--step).

    With WRITER instead: answer evaluation sets with the searches of RUN and the answers of WRITER (SCOPE Table 4).
    """
    if (step is None) == (writer is None):
        raise UserError("give --step N to play a step of the run again, or WRITER to answer after its searches.")
    for folder in (run, *([] if writer is None else [writer])):
        check_folder(folder, "a run, a checkpoint or a Hugging Face folder")
    if step is not None:
        if card is not None or base is not None or set_:
            raise UserError("a step is played again with the run's own card; leave out --card, --base and --set.")
        return _replay_step(run, step, as_json)
    assert writer is not None
    from scope_jax.evaluation.replay import replay as play_again

    show(play_again(run, writer, card, base, set_ or [], tell), as_json)


def _replay_step(run: Path, step: int, as_json: bool) -> None:
    """Exits with code 1 if an episode came out otherwise."""
    if not (card := run / "config.toml").is_file():
        raise UserError(f"{run} is not the folder of a run: {card} is missing.")
    from scope_jax.run.replaying import replay as play
    from scope_jax.train import learn

    played = play(load(card, None), run, step, tell, learn)
    places = ", ".join(map(str, played.different[:10]))
    outcome = f"{len(played.different)} came out otherwise (from 0: {places})" if played.different else "all the same"
    typer.echo(f"step {step}: {played.episodes} episodes, {outcome}", err=as_json)
    if as_json:
        typer.echo(json.dumps({"step": step, "episodes": played.episodes, "different": list(played.different)}))
    if played.different:
        raise typer.Exit(1)
