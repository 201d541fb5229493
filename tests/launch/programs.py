"""Stand-ins for the programs that launches call: each appends its arguments to a log, and does what the test needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RECORD = """#!{python}
import json, os, sys
names = [name for name in os.environ if name.startswith(("JAX_", "HF_", "SCOPE_"))]
line = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": {{name: os.environ[name] for name in names}}}}
with open({log!r}, "a") as file:
    file.write(json.dumps(line) + "\\n")
"""
# The last word of ssh, and --command of gcloud, is a command for the shell of the host. Each host has a home.
SSH = """#!/bin/bash
printf '%s\\n' "$*" >> "$(dirname "$0")/ssh.log"
[[ "$*" == *"-- "* ]] || exit 98
export HOME="$(dirname "$0")/home-${@: -2:1}"
mkdir -p "$HOME"
exec bash -c "${@: -1}"
"""
GCLOUD = """#!/bin/bash
printf '%s\\n' "$*" >> "$(dirname "$0")/gcloud.log"
case "$*" in
  *" describe "*) [ -e "$(dirname "$0")/created" ] && echo ACTIVE ;;
  *" create "*) touch "$(dirname "$0")/created" ;;
esac || exit 1
mkdir -p "$(dirname "$0")/home"
if [[ "$*" == *" scp "* ]]; then
  cp -p "$5" "$(dirname "$0")/home/${6#*:}"
fi
cd "$(dirname "$0")/home"
for word in "$@"; do
  case "$word" in --command=*) exec bash -c "${word#--command=}" ;; esac
done
"""
SUDO = """#!/bin/bash
exec "$@"
"""
DOCKER = """#!/bin/bash
case "$1" in
  ps | logs | rm) exit 0 ;;
  wait) echo 7; exit 0 ;;
esac
shift
while [[ "$1" == --* ]]; do
  case "$1" in --env-file=*)
    stat --format=%a "${1#*=}" >> "$(dirname "$0")/modes.log"
    export "$(cat "${1#*=}")" ;;
  esac
  printf '%s\\n' "$1" >> "$(dirname "$0")/docker.log"
  shift
done
printf '%s\\n' "$1" >> "$(dirname "$0")/docker.log"
shift
exec "$@"
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""


class Bin:
    """A folder of stand-ins, first in the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.recorder = self.add("scope-jax", RECORD.format(python=sys.executable, log=str(folder / "calls.log")))

    def add(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def bash(self, script: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        command = ["bash", "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def calls(self) -> list[dict[str, Any]]:
        """Calls of the recorder: arguments, folder and environment of each."""
        return [json.loads(line) for line in (self.folder / "calls.log").read_text().splitlines()]

    def log(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()
