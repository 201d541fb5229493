"""Trains every card with every seed and writes the results, with standard errors, as tables.

    python -m benchmarks.seeds configs/ssp/atlas.toml configs/ssp/ablations/solver-only.toml --seeds 0 1 2 \\
        --out runs/ssp --metrics eval/held_out/accuracy solver/reward --workers 2 --record benchmarks/results/ssp.json

The first card is the baseline that the others are compared with. The same command resumes an interrupted series;
finished runs are kept. A run whose card has changed is an error: use another --out, or remove the run's folder. The
tables go to standard output, with --record also to a file; from those in
benchmarks/results `make docs` writes a page.
--metrics takes names in metrics.jsonl, time/step, and those of figures.DERIVED.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.seeds import figures, table
from benchmarks.seeds.runner import TRAIN, Job, card_name, commit_of, done, jobs, run_all
from scope_jax.errors import UserError, is_users, sentence
from scope_jax.files import replaced
from scope_jax.run.stopping import Stopped, listen


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.seeds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cards", nargs="+", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--metrics", nargs="+", required=True, metavar="METRIC")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides for every card")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the tables to this JSON file")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="concurrent processes, each on its share of the cores; 1 with an accelerator [1]",
    )
    parser.add_argument(
        "--only-table", action="store_true", help="train nothing, only write the tables of finished runs"
    )
    return parser


def repeated(given: argparse.Namespace) -> str:
    """The command that makes the same tables, with its options in a fixed order."""
    words = [*map(str, given.cards), "--seeds", *map(str, given.seeds), "--out", str(given.out)]
    words += ["--metrics", *given.metrics, *(["--set", *given.set] if given.set else [])]
    words += ["--record", str(given.record)] if given.record else []
    return "python -m benchmarks.seeds " + shlex.join(words)


def results(given: argparse.Namespace, asked: Sequence[Job], failed: dict[Job, str]) -> dict[str, Any]:
    """`table.record` of the finished runs."""
    ended = [job for job in asked if done(job)]
    rows = {
        metric: [
            table.Row(
                card_name(card),
                {job.seed: figures.before_after(job.run, metric) for job in ended if job.card == card},
            )
            for card in given.cards
        ]
        for metric in given.metrics
    }
    baseline = card_name(given.cards[0]) if len(given.cards) > 1 else None
    left_out = [f"{job.name} ({failed.get(job, 'not finished')})" for job in asked if job not in ended]
    return table.record(repeated(given), rows, baseline, map(commit_of, ended), left_out)


def main(arguments: Sequence[str] | None = None, train: Sequence[str] = TRAIN) -> int:
    """The exit code: 1 if a run failed, 2 for a mistake in the arguments."""
    given = options().parse_args(arguments)
    try:
        asked = jobs(given.cards, given.seeds, given.out, given.set)
        failed = {} if given.only_table else run_all(asked, given.workers, _say, train)
        ended = results(given, asked, failed)
        print(table.page(ended))
        if given.record:
            with replaced(given.record) as partial:
                partial.write_text(json.dumps(ended, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except Stopped as stopped:
        _say(f"stopped by {stopped}; the same command resumes.")
        return stopped.exit_code
    except (UserError, OSError, ValueError) as error:
        if not is_users(error):
            raise
        _say(sentence(error))
        return 2
    return 1 if failed else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    listen()
    sys.exit(main())
