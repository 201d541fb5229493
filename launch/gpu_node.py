"""One GPU node, or several over ssh without a scheduler. One process drives all GPUs of its node.

jax.distributed finds the processes by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. The checkout, its
environment and the run folder are at the same path on all hosts, as on a shared file system.
"""

from __future__ import annotations

import os
import shlex
import sys

from launch.command import Job, Launch
from scope_jax.config import LaunchSection


def launch(job: Job, section: LaunchSection) -> Launch:
    """A command for this machine, or a script that starts one process on every host and waits for all."""
    node, words = section.gpu_node, job.words(sys.executable, "-m", "scope_jax")
    if not node.hosts:
        assigned = [f"{name}={shlex.quote(value)}" for name, value in section.environment.items()]
        return Launch(" ".join([*assigned, shlex.join(words)]))
    starts = []
    for number, host in enumerate(node.hosts):
        variables = section.environment | {
            "JAX_COORDINATOR_ADDRESS": f"{node.hosts[0].rpartition('@')[2]}:{node.port}",
            "JAX_NUM_PROCESSES": str(len(node.hosts)),
            "JAX_PROCESS_ID": str(number),
        }
        assigned = [f"{name}={value}" for name, value in variables.items()]
        remote = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *assigned, *words])}"
        starts.append(f"{shlex.join(['ssh', '-tt', host, remote])} < /dev/null & processes+=($!)")
    # -tt: a process ends with its ssh. If one fails, jax.distributed ends the others when its heartbeat is missing.
    lines = [
        "#!/usr/bin/env bash",
        f"# {len(node.hosts)} processes, one for each host",
        "set -euo pipefail",
        "processes=()",
        """trap 'kill "${processes[@]}" 2> /dev/null || true' INT TERM EXIT""",  # in the background they ignore Ctrl-C
        *starts,
        "code=0",
        'for process in "${processes[@]}"; do wait "$process" || code=$?; done',
        "wait  # for one whose wait was cut short by a signal",
        'exit "$code"',
    ]
    return Launch("\n".join(lines))
