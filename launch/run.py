"""Starts training of a config card as its [launch] table says; `--print` only shows the command.

python launch/run.py configs/ssp/atlas.toml --run runs/first --set train.steps=5
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.config import CardError, LaunchSection, load_card


def environment(launch: LaunchSection) -> dict[str, str]:
    """Environment variables that the processes of this launch need in addition to the caller's own."""
    if not launch.fake_devices:
        return {}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={launch.fake_devices}"
    return {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"}


def command(card: str, run: str, overrides: list[str]) -> list[str]:
    """The training command of one local process."""
    sets = [word for override in overrides for word in ("--set", override)]
    return [sys.executable, "-m", "scope_jax", "train", card, "--run", run, *sets]


def main(arguments: list[str]) -> int:
    """Prints the command or replaces this process with it; returns an exit code if it only prints or fails."""
    parser = argparse.ArgumentParser(prog="launch/run.py", description="Start a card according to its [launch] table.")
    parser.add_argument("card", metavar="CARD")
    parser.add_argument("--run", required=True, metavar="DIR", help="folder of the run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the command without running it")
    given = parser.parse_args(arguments)
    try:
        cfg = load_card(given.card, given.overrides)
    except CardError as error:
        print(f"launch/run.py: {error}", file=sys.stderr)
        return 2
    match cfg.launch.kind:
        case "local":
            added, words = environment(cfg.launch), command(given.card, given.run, given.overrides)
    if given.only_print:
        print(" ".join([f"{name}={shlex.quote(value)}" for name, value in added.items()] + [shlex.join(words)]))
        return 0
    os.execvpe(words[0], words, os.environ | added)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
