"""A TPU slice of Cloud TPU: created as a queued resource, with a container on each of its hosts.

jax.distributed finds the processes by the metadata of the TPU VMs. The containers are detached, so that training does
not depend on this machine: running the script again shows the log of the running container, or resumes the run. The
key of the run goes to the hosts in a file, which is removed when the containers have it.
"""

from __future__ import annotations

import shlex

from launch.command import NEW_KEY, Job, Launch, check_lasts
from scope_jax.config import LaunchSection
from scope_jax.config.launch import TpuPodSection
from scope_jax.config.slices import SLICES
from scope_jax.multihost.signing import KEY

CONTAINER = "scope-jax"
FILE = "scope-jax.key"  # in the home of the hosts: the variable of the environment with the run's key
SCRIPT = """\
#!/usr/bin/env bash
# {tpu_type}: {chips} chips, topology {topology}. Does the card fit? scope-jax plan CARD --on {hardware}
set -euo pipefail

# 1. The slice, unless it is there. Its state is ACTIVE when all hosts are up.
state() {{ {describe}; }}
if ! state > /dev/null 2>&1; then
  {create}
fi
while now="$(state)" && [[ "$now" != ACTIVE ]]; do
  case "$now" in
    FAILED | SUSPENDING | SUSPENDED)
      echo "The queued resource {name} is $now; delete it, then run this again:" >&2
      echo {delete} >&2
      exit 1 ;;
    DELETING)
      echo "The queued resource {name} is being deleted; run this again when it is gone." >&2
      exit 1 ;;
  esac
  sleep 30
done
if [[ "$now" != ACTIVE ]]; then
  echo "The state of the queued resource {name} cannot be read, see above; run this again." >&2
  exit 1
fi

# 2. One container on every host, all with a new key; a container that runs is left alone.
keys="$(mktemp -d)"
trap 'rm -r "$keys"' EXIT
(umask 077 && echo "{variable}=$({new_key})" > "$keys/{file}")
{hand}
{start}

# 3. The log of the first host, until the run ends; its exit code.
{follow}
"""


def launch(job: Job, section: LaunchSection) -> Launch:
    """A script that creates the slice, starts the containers and follows the log."""
    pod = section.tpu_pod
    assert pod is not None  # checked by the section
    check_lasts(job, pod.volumes.values(), "launch.tpu_pod.volumes")
    kind = SLICES[pod.tpu_type]
    place = [f"--project={pod.project}", f"--zone={pod.zone}"]
    queued = ["gcloud", "compute", "tpus", "queued-resources"]
    ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", pod.name, *place]
    copy = shlex.join(["gcloud", "compute", "tpus", "tpu-vm", "scp"])
    created = [
        *[*queued, "create", pod.name, *place, f"--node-id={pod.name}", f"--accelerator-type={pod.tpu_type}"],
        f"--runtime-version={pod.runtime_version or kind.runtime}",
        *(["--spot"] if pod.spot else []),
    ]
    text = SCRIPT.format(
        tpu_type=pod.tpu_type,
        chips=kind.chips,
        topology=kind.topology,
        hardware=kind.hardware,
        name=pod.name,
        describe=shlex.join([*queued, "describe", pod.name, *place, "--format=value(state.state)"]),
        create=shlex.join(created),
        delete=shlex.quote(shlex.join([*queued, "delete", pod.name, *place, "--force"])),
        variable=KEY,
        new_key=NEW_KEY,
        file=FILE,
        hand=f'{copy} "$keys/{FILE}" {shlex.join([f"{pod.name}:{FILE}", *place, "--worker=all"])}',
        start=shlex.join([*ssh, "--worker=all", f"--command={_start(job, section, pod)}"]),
        follow=shlex.join([*ssh, "--worker=0", f"--command={_follow()}"]),
    )
    return Launch(text.rstrip("\n"))


def _start(job: Job, section: LaunchSection, pod: TpuPodSection) -> str:
    """The command of one host: starts the container unless it is running, and removes the file with the key."""
    run = ["sudo", "docker", "run", "--detach", f"--name={CONTAINER}", "--privileged", "--network=host"]
    run += ["--ipc=host", "--ulimit=memlock=-1", f"--stop-timeout={pod.grace}", f"--env-file={FILE}"]
    run += [f"--volume={source}:{target}" for source, target in pod.volumes.items()]
    run += [f"--env={name}={value}" for name, value in section.environment.items()]
    registry = pod.image.partition("/")[0]
    steps = [shlex.join([*run, pod.image, *job.words("scope-jax")])]
    steps.insert(0, f"{{ sudo docker rm {CONTAINER} > /dev/null 2>&1 || true; }}")  # one that has ended
    if registry.endswith("-docker.pkg.dev"):  # Artifact Registry, with the account of the TPU VM
        steps.insert(0, f"sudo gcloud auth configure-docker {registry} --quiet")
    running = f'[ -n "$(sudo docker ps --quiet --filter name=^{CONTAINER}$)" ]'
    return f"{running} || {{ {' && '.join(steps)}; }}; code=$?; rm -f {FILE}; exit $code"


def _follow() -> str:
    return f"sudo docker logs --follow {CONTAINER}; exit $(sudo docker wait {CONTAINER})"
