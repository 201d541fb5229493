#!/usr/bin/env bash
# v5p-32: 16 chips, topology 2x2x4. Does the card fit? scope-jax plan CARD --on v5p:2x2x4
set -euo pipefail

# 1. The slice, unless it is there. Its state is ACTIVE when all hosts are up.
state() { gcloud compute tpus queued-resources describe scope --project=lab --zone=us-east5-a '--format=value(state.state)'; }
if ! state > /dev/null 2>&1; then
  gcloud compute tpus queued-resources create scope --project=lab --zone=us-east5-a --node-id=scope --accelerator-type=v5p-32 --runtime-version=v2-alpha-tpuv5 --spot
fi
while now="$(state)" && [[ "$now" != ACTIVE ]]; do
  case "$now" in
    FAILED | SUSPENDING | SUSPENDED)
      echo "The queued resource scope is $now; delete it, then run this again:" >&2
      echo 'gcloud compute tpus queued-resources delete scope --project=lab --zone=us-east5-a --force' >&2
      exit 1 ;;
    DELETING)
      echo "The queued resource scope is being deleted; run this again when it is gone." >&2
      exit 1 ;;
  esac
  sleep 30
done
if [[ "$now" != ACTIVE ]]; then
  echo "The state of the queued resource scope cannot be read, see above; run this again." >&2
  exit 1
fi

# 2. One container on every host, all with a new key; a container that runs is left alone.
keys="$(mktemp -d)"
trap 'rm -r "$keys"' EXIT
(umask 077 && echo "SCOPE_JAX_RUN_KEY=$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')" > "$keys/scope-jax.key")
gcloud compute tpus tpu-vm scp "$keys/scope-jax.key" scope:scope-jax.key --project=lab --zone=us-east5-a --worker=all
gcloud compute tpus tpu-vm ssh scope --project=lab --zone=us-east5-a --worker=all '--command=[ -n "$(sudo docker ps --quiet --filter name=^scope-jax$)" ] || { sudo gcloud auth configure-docker us-docker.pkg.dev --quiet && { sudo docker rm scope-jax > /dev/null 2>&1 || true; } && sudo docker run --detach --name=scope-jax --privileged --network=host --ipc=host --ulimit=memlock=-1 --stop-timeout=120 --env-file=scope-jax.key '"'"'--volume=/mnt/my data:/data'"'"' us-docker.pkg.dev/lab/images/scope-jax:1 scope-jax train configs/ssp/atlas.toml --run '"'"'/data/runs/It'"'"'"'"'"'"'"'"'s my run'"'"' --set train.steps=5; }; code=$?; rm -f scope-jax.key; exit $code'

# 3. The log of the first host, until the run ends; its exit code.
gcloud compute tpus tpu-vm ssh scope --project=lab --zone=us-east5-a --worker=0 '--command=sudo docker logs --follow scope-jax; exit $(sudo docker wait scope-jax)'
