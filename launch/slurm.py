"""A Slurm job: a batch script for sbatch, with one process on each node.

jax.distributed finds the processes by Slurm's variables. It would give each process one GPU, the one with the number of
the task on its node; JAX_LOCAL_DEVICE_IDS gives the node's only process all of them. --signal sends SIGTERM before the
time limit, so that the run stops with a checkpoint; the same script continues it, and --dependency=singleton makes
several submissions of it wait for each other. The job makes the key of its processes, which srun hands them in their
environment.
"""

from __future__ import annotations

import os
import shlex
import sys

from launch.command import NEW_KEY, Job, Launch
from scope_jax.config import LaunchSection
from scope_jax.multihost.signing import KEY


def launch(job: Job, section: LaunchSection) -> Launch:
    """The batch script."""
    slurm = section.slurm
    options = {
        "job-name": job.name,
        "output": "slurm-%x-%j.out",
        "open-mode": "append",
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "time": slurm.time,
        "nodes": slurm.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": slurm.gpus_per_node,
        "cpus-per-task": slurm.cpus_per_task,
        "signal": f"TERM@{slurm.grace}",
        "dependency": "singleton",
    }
    devices = ",".join(str(number) for number in range(slurm.gpus_per_node))
    variables = {"JAX_LOCAL_DEVICE_IDS": devices} | section.environment
    srun = ["srun", "--kill-on-bad-exit=1"]
    if slurm.cpus_per_task is not None:
        srun.append(f"--cpus-per-task={slurm.cpus_per_task}")  # srun does not inherit it from sbatch
    lines = [
        "#!/usr/bin/env bash",
        *[f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None],
        "#SBATCH --requeue",
        "set -euo pipefail",
        f"cd {shlex.quote(os.getcwd())}",
        *[f"export {name}={shlex.quote(value)}" for name, value in variables.items()],
        f'{KEY}="$({NEW_KEY})"',
        f"export {KEY}",
        "exec " + shlex.join([*srun, *job.words(sys.executable, "-m", "scope_jax")]),
    ]
    return Launch("\n".join(lines), ("sbatch",))
