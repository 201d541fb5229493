"""The table of launch/run.py: where a card is started, and with what."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from scope_jax.config.base import Section
from scope_jax.config.slices import known_type


def _word(text: str) -> str:
    if not text or not text.isprintable() or any(c.isspace() or c in "'\"\\`$;&|<>()" for c in text):
        raise ValueError("must be a single word without spaces, quotes and shell characters")
    if text.startswith("-"):
        raise ValueError(f"is {text!r}, which a program would read as an option; begin it with another character")
    return text


def _host(text: str) -> str:
    user, at, name = text.rpartition("@")
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name, re.ASCII) and not _is_ipv6(name):
        raise ValueError(f"names {name!r}, which is not a host; give a name or an address, as in node0 or me@10.0.0.5")
    if at and not re.fullmatch(r"[A-Za-z0-9_][\w.+-]*", user, re.ASCII):
        raise ValueError(f"names {user!r} before the @, which is not a user; give one as in me@node0")
    return text


def _is_ipv6(name: str) -> bool:
    try:
        return ipaddress.IPv6Address(name).scope_id is None
    except ValueError:
        return False


def _cloud_name(text: str) -> str:
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise ValueError("must be up to 63 lower-case letters, digits and -, beginning with a letter")
    return text


def _duration(text: str) -> str:
    if not re.fullmatch(r"\d{1,5}|(\d{1,3}-)?\d{1,4}:\d{2}(:\d{2})?", text):
        raise ValueError("must be a time limit of Slurm, such as 12:00:00 or 2-00:00:00")
    return text


def _variables(table: dict[str, str]) -> dict[str, str]:
    for name, value in table.items():
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} is not the name of an environment variable; use letters, digits and _")
        if not value.isprintable():
            raise ValueError(f"the value of {name} has unprintable characters, such as a line break; remove them")
    return table


def _mounts(table: dict[str, str]) -> dict[str, str]:
    for source, target in table.items():
        if (
            not source
            or not target.startswith("/")
            or any(not text.isprintable() or ":" in text for text in (source, target))
        ):
            raise ValueError(f"{source!r} = {target!r} is not a volume; give it an absolute path in the container")
    return table


Word = Annotated[str, AfterValidator(_word)]
Host = Annotated[str, AfterValidator(_host)]  # what ssh can be given, but no option
CloudName = Annotated[str, AfterValidator(_cloud_name)]
TpuType = Annotated[str, AfterValidator(known_type)]
Mounts = Annotated[dict[str, str], AfterValidator(_mounts)]
Grace = Annotated[int, Field(ge=10, le=3600)]  # seconds between SIGTERM and SIGKILL


class GpuNodeSection(Section):
    """One node with all its GPUs in one process, or several nodes over ssh with one process each."""

    hosts: tuple[Host, ...] = Field(default=(), strict=False)
    """Hosts reached by ssh, e.g. `["node0", "me@node1"]`, each with the checkout at the same path; names and addresses
    only; []: this machine."""
    port: int = Field(default=8476, ge=1024, le=65535)
    """Port of `jax.distributed` on the first host."""

    @model_validator(mode="after")
    def _hosts_differ(self) -> GpuNodeSection:
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("a host has one process for all its GPUs; name every host once in hosts")
        return self


class SlurmSection(Section):
    """A job with one process on each node, which drives all its GPUs."""

    nodes: int = Field(default=1, ge=1, le=4096)
    """Nodes; one process on each, for all its GPUs."""
    gpus_per_node: int = Field(default=8, ge=1, le=64)
    """GPUs of a node."""
    cpus_per_task: int | None = Field(default=None, ge=1, le=1024)
    """Processor cores of a node; default: Slurm's."""
    partition: Word | None = None
    """Partition; default: Slurm's."""
    account: Word | None = None
    """Account that is charged; default: Slurm's."""
    qos: Word | None = None
    """Quality of service; default: Slurm's."""
    time: Annotated[str, AfterValidator(_duration)] | None = None
    """Time limit, e.g. `"1-00:00:00"`."""
    grace: Grace = 120
    """Seconds before the time limit at which the processes get SIGTERM."""


class TpuPodSection(Section):
    """A TPU slice of Cloud TPU as a queued resource, with the program in a container on every host."""

    name: CloudName
    """Name of the queued resource and of its node."""
    project: CloudName
    """Google Cloud project."""
    zone: CloudName
    """Zone, e.g. `us-east5-a`."""
    tpu_type: TpuType
    """Name of the slice: `v5p-32` (16 chips: v5p counts two cores each), `v5litepod-64`, `v6e-16`."""
    image: Word
    """Container image (docs/launch.md#images)."""
    runtime_version: Word | None = None
    """Software version of the TPU VMs; default: the one for JAX on this generation."""
    spot: bool = False
    """Spot capacity: cheaper, can be preempted."""
    volumes: Mounts = {}
    """Folders of every host and where they are in the container, e.g. `{ "/mnt/scope" = "/data" }`."""
    grace: Grace = 120
    """Seconds between SIGTERM and SIGKILL when the container is stopped."""


class GkeJobsetSection(Section):
    """A TPU slice of a GKE cluster, with the program as a JobSet."""

    project: CloudName
    """Google Cloud project."""
    location: CloudName
    """Region or zone of the cluster."""
    cluster: CloudName
    """Name of the cluster."""
    tpu_type: TpuType
    """Name of the slice, as in `[launch.tpu_pod]`."""
    image: Word
    """Container image (docs/launch.md#images)."""
    namespace: CloudName = "default"
    """Kubernetes namespace."""
    spot: bool = False
    """Only spot nodes."""
    queue: CloudName | None = None
    """A LocalQueue of Kueue."""
    service_account: CloudName | None = None
    """Kubernetes service account of the pods."""
    volumes: Annotated[dict[CloudName, str], AfterValidator(_mounts)] = {}
    """Persistent volume claims, to be mounted by many nodes, and where they are in the container: `{ "scope-data" =
    "/data" }`."""
    max_restarts: int = Field(default=10, ge=0, le=1000)
    """Restarts of the whole job after a failure or preemption; each resumes the run."""
    grace: Grace = 120
    """Seconds between SIGTERM and SIGKILL."""


Kind = Literal["local", "gpu-node", "slurm", "tpu-pod", "gke-jobset"]


class LaunchSection(Section):
    kind: Kind = "local"
    """`local`: one process on this machine. `gpu-node`: the same for GPUs, or one process on each of several hosts over
    ssh. `slurm`: a batch job. `tpu-pod`: a TPU slice of Cloud TPU as a queued resource. `gke-jobset`: a TPU slice of a
    GKE cluster."""
    fake_devices: int = Field(default=0, ge=0, le=1024)
    """Number of simulated CPU devices (`local`)."""
    environment: Annotated[dict[str, str], AfterValidator(_variables)] = {}
    """Environment variables of every process, e.g. `{ HF_HOME = "/data/hub" }`; no secrets, as the card is stored with
    the run."""
    gpu_node: GpuNodeSection = GpuNodeSection()
    """For `kind = "gpu-node"`."""
    slurm: SlurmSection = SlurmSection()
    """For `kind = "slurm"`."""
    tpu_pod: TpuPodSection | None = None
    """For `kind = "tpu-pod"`."""
    gke_jobset: GkeJobsetSection | None = None
    """For `kind = "gke-jobset"`."""

    @property
    def grace(self) -> tuple[str, int] | None:
        """Key and value of the seconds between SIGTERM and SIGKILL; None where nothing ends the processes."""
        tables = {"slurm": self.slurm, "tpu-pod": self.tpu_pod, "gke-jobset": self.gke_jobset}
        table = tables.get(self.kind)
        return None if table is None else (f"launch.{self.kind.replace('-', '_')}.grace", table.grace)

    @model_validator(mode="after")
    def _is_complete(self) -> LaunchSection:
        tables = {"tpu-pod": self.tpu_pod, "gke-jobset": self.gke_jobset}
        if self.kind in tables and tables[self.kind] is None:
            table = self.kind.replace("-", "_")
            raise ValueError(
                f'kind = "{self.kind}" needs the table [launch.{table}] (docs/launch.md); add it to the card'
            )
        if self.fake_devices and self.kind != "local":
            raise ValueError(f'fake_devices is for kind = "local", but kind is "{self.kind}"; set fake_devices = 0')
        return self
