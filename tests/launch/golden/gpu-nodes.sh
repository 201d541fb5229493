#!/usr/bin/env bash
# 2 processes, one for each host
set -euo pipefail
key="$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')"
ssh -T -- node0 'umask 077 && rm -f ~/.it-s-my-run-ef82ea-0.key && cat > ~/.it-s-my-run-ef82ea-0.key' <<< "$key"
ssh -T -- me@node1 'umask 077 && rm -f ~/.it-s-my-run-ef82ea-1.key && cat > ~/.it-s-my-run-ef82ea-1.key' <<< "$key"
processes=()
trap 'kill "${processes[@]}" 2> /dev/null || true' INT TERM EXIT
ssh -tt -- node0 'SCOPE_JAX_RUN_KEY=$(cat ~/.it-s-my-run-ef82ea-0.key) && rm ~/.it-s-my-run-ef82ea-0.key && export SCOPE_JAX_RUN_KEY && cd /checkout && exec env JAX_COORDINATOR_ADDRESS=node0:8476 JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=0 /checkout/.venv/bin/python -m scope_jax train configs/ssp/atlas.toml --run '"'"'/data/runs/It'"'"'"'"'"'"'"'"'s my run'"'"' --set train.steps=5' < /dev/null & processes+=($!)
ssh -tt -- me@node1 'SCOPE_JAX_RUN_KEY=$(cat ~/.it-s-my-run-ef82ea-1.key) && rm ~/.it-s-my-run-ef82ea-1.key && export SCOPE_JAX_RUN_KEY && cd /checkout && exec env JAX_COORDINATOR_ADDRESS=node0:8476 JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=1 /checkout/.venv/bin/python -m scope_jax train configs/ssp/atlas.toml --run '"'"'/data/runs/It'"'"'"'"'"'"'"'"'s my run'"'"' --set train.steps=5' < /dev/null & processes+=($!)
code=0
for process in "${processes[@]}"; do wait "$process" || code=$?; done
wait  # for one whose wait was cut short by a signal
exit "$code"
