"""`[sandbox]`: where Python code that a policy has written runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import Address, Count, Seconds, Section, Whole


class SandboxSection(Section):
    """Where the `python` tool runs code that a policy has written (docs/sandbox.md)."""

    isolation: Literal["auto", "none"] = "auto"
    """`auto`: in namespaces of its own, by the kernel or by bubblewrap, which is tried out when the run starts; a run
    that finds no way does not start. `none`: code of the model runs as your user, with your files and network, within
    limits of time and memory only."""
    endpoint: Address | None = None
    """Base URL of a SandboxFusion server, which runs the code instead; isolation is its concern."""
    workers: Count | None = None
    """Most calls that run at the same time; further ones wait. Default: one for each core, at most 16."""
    seconds: Seconds = 10.0
    """Most seconds of a call, from its start; then everything it has started is killed, and its session is over."""
    cpu_seconds: Count = 60
    """Most CPU seconds of a process: of a session's calls together. What a call starts ends with it, and is bounded by
    `seconds` and `processes`."""
    memory_mib: Annotated[int, Field(ge=512, le=1 << 20)] = 1024
    """Address space of a process in MiB; numpy and sympy take about 300 of them."""
    processes: Count = 16
    """Most processes and threads of a call or session. Each has `memory_mib`. Without isolation it is not applied."""
    tmp_mib: Count = 64
    """Size of `/tmp` in MiB, the only folder that can be written; also that of the largest file."""
    max_output: Annotated[int, Field(ge=1024, le=1 << 24)] = 65_536
    """Most bytes that a call prints; then it is killed. What a policy reads of it is cut by the tool's limit."""
    retries: Whole = 4
    """Further attempts after a SandboxError, a lost connection or a status of 5xx of the endpoint."""
    retry_delay: float = Field(default=0.5, ge=0, le=30)
    """Seconds before the first retry; doubled each time, at most 30."""

    @model_validator(mode="after")
    def _an_endpoint_isolates(self) -> SandboxSection:
        if self.endpoint is not None and self.isolation == "none":
            raise ValueError(
                "isolation is of code that runs here, and an endpoint runs it elsewhere; remove one of them"
            )
        return self
