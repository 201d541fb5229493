"""Starts training of a card as its [launch] table says; `--print` only shows what would run. docs/launch.md

python launch/run.py configs/ssp/atlas.toml --run runs/first --set train.steps=5
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch import gke_jobset, gpu_node, local, slurm, tpu_pod
from launch.command import Job, Launch
from scope_jax.config import CardError, LaunchSection
from scope_jax.games import load_card

KINDS: dict[str, Callable[[Job, LaunchSection], Launch]] = {
    "local": local.launch,
    "gpu-node": gpu_node.launch,
    "slurm": slurm.launch,
    "tpu-pod": tpu_pod.launch,
    "gke-jobset": gke_jobset.launch,
}


def main(arguments: list[str]) -> int:
    """Prints the command, or runs it: replaces this process by bash, or hands the text to the scheduler's program.

    Returns an exit code if it prints, fails or hands over.
    """
    parser = argparse.ArgumentParser(prog="launch/run.py", description="Start a card according to its [launch] table.")
    parser.add_argument("card", metavar="CARD")
    parser.add_argument("--run", required=True, metavar="DIR", help="folder of the run, as the processes see it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the command without running it")
    given = parser.parse_args(arguments)
    try:
        section = load_card(given.card, given.overrides).launch
        made = KINDS[section.kind](Job(given.card, given.run, tuple(given.overrides)), section)
    except CardError as error:
        print(f"launch/run.py: {error}", file=sys.stderr)
        return 2
    if given.only_print:
        print(made.text)
        return 0
    words = list(made.program) or ["bash", "-c", made.text]
    try:
        if not made.program:
            os.execvp(words[0], words)
        return subprocess.run(words, input=made.text + "\n", text=True, check=False).returncode
    except FileNotFoundError:
        print(
            f'launch/run.py: {words[0]} is not installed here, but kind = "{section.kind}" needs it; '
            "install it, or use --print and run the result where it is.",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
