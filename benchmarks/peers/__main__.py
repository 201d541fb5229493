"""Speed of ours against transformers, torch, TRL and Tunix on the same model, interleaved in one run.

    python -m benchmarks.peers --peer trl=PYTHON --peer tunix=PYTHON

PYTHON is the interpreter of the peer's environment; benchmarks/peers/README.md says how to make it. Without --peer,
ours is compared with transformers and torch only. Prints a Markdown table and one JSON line: tokens per second of the
cases fixed, ragged and group, seconds of update, update_old and step, which benchmarks/peers/cases.py describes.
Figures are medians; ratios are medians of the ratios within a repetition. Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import cases, machine
from benchmarks.peers.client import ROOT, Client, environment
from benchmarks.peers.measure import Measured, Settings, measure
from benchmarks.peers.table import summary, table
from scope_jax.errors import UserError, sentence

MODULES = {
    "ours": "benchmarks.peers.ours",
    "torch": "benchmarks.peers.plain_torch",
    "trl": "benchmarks.peers.trl_grpo",
    "tunix": "benchmarks.peers.tunix_grpo",
}
SAME = 1e-4  # largest difference of two participants' mean log-probs


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="trl or tunix")
    parser.add_argument("--cases", nargs="+", choices=cases.CASES, default=list(cases.CASES))
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument(
        "--rejections", type=int, default=30, help="repetitions of a case that may be rejected before giving up [30]"
    )
    parser.add_argument(
        "--allow-busy", action="store_true", help="count repetitions on a busy machine, too: for development only"
    )
    parser.add_argument(
        "--compiled", action="store_true", help="also generate with a static cache and a compiled decoding step"
    )
    parser.add_argument("--avx2", action="store_true", help="nobody uses AVX-512: stands in for an older machine")
    parser.add_argument("--logs", type=Path, help="folder for the output of the processes; a temporary one without it")
    return parser


def interpreters(peers: Sequence[str]) -> dict[str, str]:
    """Python interpreter by participant. Raises UserError for a peer that is not known, or not NAME=PYTHON."""
    found = {"ours": sys.executable, "torch": sys.executable}
    for peer in peers:
        name, equals, python = peer.partition("=")
        if not equals or name not in MODULES or name in found:
            raise UserError(f"--peer {peer} is not trl=PYTHON or tunix=PYTHON, each at most once.")
        found[name] = python
    return found


def check_same(logprobs: dict[str, float]) -> None:
    """Raises UserError if the participants do not compute the same function of the weights."""
    for name, value in logprobs.items():
        if not math.isclose(value, logprobs["ours"], rel_tol=0, abs_tol=SAME):
            raise UserError(f"{name} has a mean log-prob of {value:.6f}, ours {logprobs['ours']:.6f}: not one model.")


def run(given: argparse.Namespace, folder: Path) -> tuple[list[Measured], dict[str, Any]]:
    """(results of the cases, versions by participant); folder: for weights and logs."""
    weights = folder / "weights"
    written = subprocess.run(
        [sys.executable, "-m", MODULES["ours"], str(weights), *given.cases], cwd=ROOT, env=environment(), check=False
    )
    if written.returncode:
        raise UserError("the weights could not be written; see above.")
    clients: dict[str, Client] = {}
    try:
        for name, python in interpreters(given.peer).items():
            command = [python, "-m", "benchmarks.peers.worker", MODULES[name], str(weights)]
            clients[name] = Client(name, command, folder / f"{name}.log", given.avx2)
        answers = {name: client.ask("hello") for name, client in clients.items()}
        check_same({name: answer["logprob"] for name, answer in answers.items()})
        settings = Settings(given.repetitions, given.rejections, given.allow_busy, given.compiled)
        results = [measure(case, clients, settings, _say) for case in given.cases]
    finally:
        for client in clients.values():
            client.close()
    return results, {name: answer["versions"] for name, answer in answers.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 if the measurement could not be made."""
    given = options().parse_args(arguments)
    try:
        interpreters(given.peer)
        with tempfile.TemporaryDirectory(prefix="peers-") as temporary:
            folder = given.logs or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            results, versions = run(given, folder)
    except UserError as error:
        _say(str(error) if "\n" in str(error) else sentence(error))
        return 2
    print(table(results))
    print(
        json.dumps(
            {
                "benchmark": "peers",
                "cores": machine.cores(),
                "repetitions": given.repetitions,
                "busy_allowed": given.allow_busy,
                "avx2": given.avx2,
                "versions": versions,
                "cases": {measured.case: summary(measured) for measured in results},
            }
        )
    )
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
