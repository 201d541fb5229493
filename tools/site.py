"""A hook of MkDocs (mkdocs.yml): pages that are written from code and records."""

from __future__ import annotations

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from benchmarks import plan_tables
from benchmarks.seeds import table
from scope_jax.config import Config
from scope_jax.config.reference import page
from scope_jax.config.suites import SuiteCard
from scope_jax.games import GAMES

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def tables() -> str:
    """The page of measured tables: every file of benchmarks/results."""
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    parts = [f"## {name}\n\n{table.page(record)}\n" for name, record in records.items()]
    return "\n".join(["# Tables\n\n[Results](results.md) says how they were measured and what they show.\n", *parts])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page of all keys of a card, that of measured tables, and that of plans."""
    options = {name: game.options for name, game in GAMES.items()}
    files.append(File.generated(config, "keys.md", content=page(Config, options, SuiteCard)))
    files.append(File.generated(config, "tables.md", content=tables()))
    files.append(File.generated(config, "plan_tables.md", content=plan_tables.page()))
    return files
