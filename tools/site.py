"""A hook of MkDocs (mkdocs.yml): pages that are written from code and records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from benchmarks import device, plan_tables
from benchmarks.programs import cases as programs
from benchmarks.real_model import record as real_model_record
from benchmarks.real_model import table as real_model
from benchmarks.seeds import table
from scope_jax.config import Config
from scope_jax.config.reference import page
from scope_jax.config.suites import SuiteCard
from scope_jax.games import GAMES
from scope_jax.models.files.described import page as families

ROOT = Path(__file__).parents[1]
RESULTS, BASELINES = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "baselines"
OUTCOMES = ROOT / "tests" / "torture" / "outcomes.json"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _rows(first: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A table whose rows have the same columns. first: what their names are."""
    heads = [first, *next(iter(rows.values()))]
    cells = [[name, *map(str, row.values())] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *cells])


def tables() -> str:
    """The page of measured tables: every file of benchmarks/results, then what docs/reliability.md is about."""
    parts = {path.stem: table.page(_read(path)) for path in sorted(RESULTS.glob("*.json"))}
    parts["A real model"] = real_model.page(_read(ROOT / real_model_record.FILE))
    parts["Faults and attacks"] = _rows("attack", _read(OUTCOMES))
    parts["Text addressed to a judge"] = _rows("judge", _read(BASELINES / "swayed.json"))
    parts["One H100"] = device.table(_read(BASELINES / "device-h100.json"))
    parts["One H200"] = device.table(_read(BASELINES / "device-h200.json"))
    parts["Compiled programs"] = programs.table(programs.kept())
    opening = (
        "# Tables\n\n[Results](results.md) says how they were measured and what they show, "
        "[reliability](reliability.md) the same of the four before the last, "
        "[plans](plans.md#what-compiled-programs-do) of that.\n"
    )
    return "\n".join([opening, *(f"## {name}\n\n{text}\n" for name, text in parts.items())])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of all keys of a card, of measured tables, of plans, and of model families."""
    options = {name: game.options for name, game in GAMES.items()}
    files.append(File.generated(config, "keys.md", content=page(Config, options, SuiteCard)))
    files.append(File.generated(config, "tables.md", content=tables()))
    files.append(File.generated(config, "families.md", content=families()))
    files.append(File.generated(config, "plan_tables.md", content=plan_tables.page()))
    return files
