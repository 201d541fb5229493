"""One GPU node, or several over ssh without a scheduler. One process drives all GPUs of its node.

jax.distributed finds the processes by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. The checkout, its
environment and the run folder are at the same path on all hosts, as on a shared file system.

The key of the run is new for each launch. It goes to every host by ssh's standard input, into a file that only the
user may read and that the process there removes: a command line can be seen by everybody on a host.
"""

from __future__ import annotations

import os
import shlex
import sys

from launch.command import NEW_KEY, Job, Launch
from scope_jax.config import LaunchSection
from scope_jax.multihost.signing import KEY


def launch(job: Job, section: LaunchSection) -> Launch:
    """A command for this machine, or a script that starts one process on every host and waits for all."""
    node, words = section.gpu_node, job.words(sys.executable, "-m", "scope_jax")
    if not node.hosts:
        assigned = [f"{name}={shlex.quote(value)}" for name, value in section.environment.items()]
        return Launch(" ".join([*assigned, shlex.join(words)]))
    address = node.hosts[0].rpartition("@")[2]
    hands, starts = [], []
    for number, host in enumerate(node.hosts):
        variables = section.environment | {
            "JAX_COORDINATOR_ADDRESS": f"[{address}]:{node.port}" if ":" in address else f"{address}:{node.port}",
            "JAX_NUM_PROCESSES": str(len(node.hosts)),
            "JAX_PROCESS_ID": str(number),
        }
        file = f"~/.{job.name}-{number}.key"
        assigned = [f"{name}={value}" for name, value in variables.items()]
        run = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *assigned, *words])}"
        remote = f"{KEY}=$(cat {file}) && rm {file} && export {KEY} && {run}"
        hand = f"umask 077 && rm -f {file} && cat > {file}"
        hands.append(f'{shlex.join(["ssh", "-T", "--", host, hand])} <<< "$key"')
        starts.append(f"{shlex.join(['ssh', '-tt', '--', host, remote])} < /dev/null & processes+=($!)")
    # -tt: a process ends with its ssh. If one fails, jax.distributed ends the others when its heartbeat is missing.
    lines = [
        "#!/usr/bin/env bash",
        f"# {len(node.hosts)} processes, one for each host",
        "set -euo pipefail",
        f'key="$({NEW_KEY})"',
        *hands,
        "processes=()",
        """trap 'kill "${processes[@]}" 2> /dev/null || true' INT TERM EXIT""",  # in the background they ignore Ctrl-C
        *starts,
        "code=0",
        'for process in "${processes[@]}"; do wait "$process" || code=$?; done',
        "wait  # for one whose wait was cut short by a signal",
        'exit "$code"',
    ]
    return Launch("\n".join(lines))
