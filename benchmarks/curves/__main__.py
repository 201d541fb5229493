"""One curve, three systems: GRPO by scope-jax, TRL and Tunix from the same weights on the same prompts, over seeds.

    python -m benchmarks.curves --peer trl=PYTHON --peer tunix=PYTHON --seeds 0 1 2 3 4

writes the base and the data if they are not there, runs every system with every seed that has no curve yet, writes the
curves (JSON), the figure (SVG) and the table of docs/one_curve.md. benchmarks/curves/README.md says what is equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.curves import base, figure, task
from benchmarks.peers.client import ROOT, environment
from benchmarks.seeds.table import place
from scope_jax.errors import UserError, sentence
from scope_jax.run.files import read_records

PEERS = {  # module and first arguments of each run of a peer, by the peer and by the name of the curve
    "trl": {"TRL": ("benchmarks.curves.trl_run",), "TRL, our completions": ("benchmarks.curves.trl_run", "--ours")},
    "tunix": {
        "Tunix": ("benchmarks.curves.tunix_run", "new-keys"),
        "Tunix, one key": ("benchmarks.curves.tunix_run", "same-key"),
    },
}
Curve = dict[str, Any]
PAGE = ROOT / "docs" / "one_curve.md"


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="trl or tunix")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--curves", type=Path, default=Path("benchmarks/baselines/curves.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/one_curve.svg"))
    return parser


def ours(seeds: Sequence[int]) -> Iterator[Curve]:
    """The curve of each run of `scope-jax train`, from its metrics."""
    names = {"reward": "solver/reward", "short": "solver/short", "exam": "eval/held_out/right"}
    for seed in seeds:
        run, card = task.FOLDER / "ours" / f"seed-{seed}", Path(__file__).parent / "card.toml"
        words = [sys.executable, "-m", "scope_jax", "train", str(card), "--run", str(run), "--set", f"seed={seed}"]
        subprocess.run(words, cwd=ROOT, stdout=sys.stderr, check=True)
        records = list(read_records(run / "metrics.jsonl"))
        curve = {name: [record[key] for record in records if key in record] for name, key in names.items()}
        yield curve | {"versions": {name: version(name) for name in ("scope-jax", "jax")}}


def theirs(python: str, words: Sequence[str], seeds: Sequence[int]) -> Iterator[Curve]:
    """The curve of each of a peer's runs, in one process. Raises UserError, with the end of its log, if it fails."""
    command = [python, "-m", *words, *map(str, seeds)]
    log = task.FOLDER / f"{'-'.join(words)}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=errors, encoding="utf-8"
        )
    assert process.stdout is not None
    yield from (json.loads(line) for line in process.stdout if line.startswith('{"'))
    if process.wait():
        raise UserError(f"{words[0]} failed; the end of its log:\n{log.read_text(encoding='utf-8')[-2000:]}")


def main() -> int:
    given = options().parse_args()
    try:
        peers = dict(peer.split("=", 1) for peer in given.peer if "=" in peer)
        if len(peers) != len(given.peer) or not peers.keys() <= PEERS.keys():
            raise UserError("--peer is trl=PYTHON or tunix=PYTHON, each at most once.")
        if not (task.FOLDER / "base").is_dir():
            base.build()
        systems: dict[str, Callable[[Sequence[int]], Iterator[Curve]]] = {"scope-jax": ours}
        for peer, python in peers.items():
            systems |= {name: partial(theirs, python, words) for name, words in PEERS[peer].items()}
        curves = json.loads(given.curves.read_text(encoding="utf-8")) if given.curves.is_file() else {}
        for name, system in systems.items():
            missing = [seed for seed in given.seeds if str(seed) not in curves.setdefault(name, {})]
            for seed, curve in zip(missing, system(missing), strict=True) if missing else ():
                curves[name][str(seed)] = curve
                given.curves.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
                print(f"{name}, seed {seed}: {curve['exam']}", file=sys.stderr, flush=True)
    except UserError as error:
        print(str(error) if "\n" in str(error) else sentence(error), file=sys.stderr)
        return 2
    figure.draw(curves, given.figure)
    place(PAGE, "one-curve", figure.table(curves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
