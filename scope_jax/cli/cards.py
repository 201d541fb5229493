"""Commands about cards and runs: runs lists them, keys describes the keys of a card, check opens what it refers to."""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from scope_jax.cli.options import Card, Json, Sets, load
from scope_jax.cli.output import console, show, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError

STATES = {"—": "required", "none": "not set"}  # of a table that a card may lack


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of run folders.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder: game, model, steps that are done, and when the last of them ended."""
    from scope_jax.config import CardError
    from scope_jax.games import load_data

    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*/config.toml")):
        try:
            cfg = load_data(path)
            what = {"game": cfg.system, "model": cfg.model.checkpoint, "of": cfg.train.steps}
        except CardError as error:
            what = {"game": "", "model": str(error), "of": None}
        steps, changed = _progress(path.parent / "metrics.jsonl")
        found.append({"run": str(path.parent), **what, "steps": steps, "changed": changed})
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        tell(f"there is no run in {folder}")
    for one in found:
        of = "" if one["of"] is None else f" of {one['of']}"
        typer.echo(f"{one['run']}  {one['game']}  {one['steps']}{of} steps  {one['changed']}  {one['model']}")


def _progress(metrics: Path) -> tuple[int, str]:
    """(the last whole line's step, the file's time) of metrics.jsonl; (0, "") if there is none."""
    from scope_jax.run.files import read_records

    if not metrics.is_file():
        return 0, ""
    steps = 0
    with suppress(UserError):  # a damaged line, of which `report` says where it is
        for record in read_records(metrics):
            steps = record["step"]
    return steps, time.strftime("%Y-%m-%d %H:%M", time.localtime(metrics.stat().st_mtime))


@app.command()
def keys(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="A table or key, such as rollout, train.watch or ssp.solver.loss."),
    ] = None,
    game: Annotated[
        str | None, typer.Option(metavar="NAME", help="The game whose table is shown too: a Python file with one.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a page of the documentation.")] = False,
    as_json: Json = False,
) -> None:
    """Describe the keys of a card: defaults, values and meaning; without TABLE, list its tables."""
    from scope_jax.config import Config, reference
    from scope_jax.config.suites import SuiteCard
    from scope_jax.games import GAMES, find

    options = {name: built_in.options for name, built_in in GAMES.items()}
    if game is not None:
        played = find(game)
        options |= {played.name: played.options}
        table = table or played.name
    if table is None and markdown:
        typer.echo(reference.page(Config, options, SuiteCard), nl=False)
        return
    known = [*reference.all_keys(Config)]
    for name, section in options.items():
        known.append(reference.Key(name, "table", " ".join((section.__doc__ or "").split()), section, None))
        known += reference.all_keys(section, f"{name}.")
    if table is None:
        chosen = [key for key in known if "." not in key.name]
    else:
        chosen = [key for key in known if f"{key.name}.".startswith(f"{table}.")]
    if not chosen:
        near = get_close_matches(str(table), [key.name for key in known], 3)
        advice = f"; did you mean {' or '.join(near)}?" if near else "; `scope-jax keys` lists the tables."
        raise UserError(f"a card has no table or key {table!r}{advice}")
    if as_json:
        typer.echo(json.dumps([{"key": key.name, "default": key.default, "meaning": key.text} for key in chosen]))
    elif markdown:
        typer.echo(reference.markdown(iter(chosen)), nl=False)
    else:
        width = shutil.get_terminal_size((120, 24)).columns
        for key in chosen:
            typer.echo(
                f"[{key.name}]  {STATES.get(key.default, '')}".strip() if key.table else f"{key.name} = {key.default}"
            )
            if key.text:
                typer.echo(textwrap.fill(key.text, width, initial_indent="    ", subsequent_indent="    "))


PROBED = 4  # prompts of a probe


@app.command()
def check(
    card: Card,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Then sample a few prompts of the first step, and show the replies graded."),
    ] = False,
    prompts: Annotated[
        int | None, typer.Option(metavar="N", min=1, help=f"Prompts of --probe [default: {PROBED}].")
    ] = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Open every model, prompt, data set, corpus and server of CARD and report what is wrong; nothing is compiled.

    With --probe the model is loaded and replies, and you see how many groups of replies would have a gradient.
    """
    if prompts is not None and not probe:
        raise UserError("--prompts is for --probe; give both.")
    cfg = load(card, set_)
    if probe:
        from scope_jax.run.probing import check_sampled

        check_sampled(cfg)
    results = open_all(card, cfg, as_json)
    if probe:
        results["probe"] = _probed(cfg, prompts or PROBED, as_json)
    if as_json:
        show(results, as_json)


def _probed(cfg: Any, prompts: int, as_json: bool) -> dict[str, Any]:
    """Plays a few prompts of the first step and prints them; returns what --json has of it."""
    from scope_jax.games import game_of
    from scope_jax.report.probe import lines, plain
    from scope_jax.report.progress import Progress
    from scope_jax.run.probing import probe

    of_game = game_of(cfg).roles(cfg)
    with Progress(console()) as progress:
        roles = probe(cfg, prompts, progress.say, progress.part, progress.follow)
    for line in lines(roles, of_game, prompts):
        typer.echo(line, err=as_json)
    return plain(roles, of_game)


def open_all(card: Path, cfg: Any, as_json: bool, left: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `check` does, and returns. left: models of the hub that are not downloaded."""
    from scope_jax.run.fetching import fetched
    from scope_jax.run.rules import Finding
    from scope_jax.run.rules import check as opened

    wrong, findings = 0, {}
    unavailable: dict[str, Finding] = {}

    def missing(name: str, error: FileNotFoundError) -> None:
        unavailable[name] = Finding(f"model {name}", str(error), True)

    here = fetched(cfg, tell, left, missing)
    for one in chain(unavailable.values(), opened(here, (*left, *unavailable))):
        wrong += one.wrong
        findings[one.name] = f"{one.text}\n{one.example}" if one.example else one.text
        if not as_json:
            found = "WRONG" if one.wrong else "doubt" if one.doubtful else "ok"
            typer.echo(f"{found:<6} {one.name}: {one.text}")
            if one.example:
                typer.echo(textwrap.indent(one.example, "       | "))
    results = {"wrong": wrong, **findings}
    if wrong:
        if as_json:
            show(results, as_json)
        raise UserError(f"{wrong} of {len(findings)} parts of {card} cannot be used, see above.")
    return results
