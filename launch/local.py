"""One process on this machine."""

from __future__ import annotations

import os
import shlex
import sys

from launch.command import Job, Launch
from scope_jax.config import LaunchSection


def launch(job: Job, section: LaunchSection) -> Launch:
    """The command, with simulated CPU devices if the card has `launch.fake_devices`."""
    variables = dict(section.environment)
    if section.fake_devices:
        before = variables.get("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
        flag = f"--xla_force_host_platform_device_count={section.fake_devices}"
        variables |= {"XLA_FLAGS": f"{before} {flag}".strip(), "JAX_PLATFORMS": "cpu"}
    assigned = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return Launch(" ".join([*assigned, shlex.join(job.words(sys.executable, "-m", "scope_jax"))]))
