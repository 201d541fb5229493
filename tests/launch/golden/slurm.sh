#!/usr/bin/env bash
#SBATCH --job-name=it-s-my-run-ef82ea
#SBATCH --output=slurm-%x-%j.out
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --time=1-00:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --signal=TERM@120
#SBATCH --dependency=singleton
#SBATCH --requeue
set -euo pipefail
cd /checkout
export JAX_LOCAL_DEVICE_IDS=0,1,2,3
export HF_HOME='/scratch/my hub'
SCOPE_JAX_RUN_KEY="$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')"
export SCOPE_JAX_RUN_KEY
exec srun --kill-on-bad-exit=1 --cpus-per-task=16 /checkout/.venv/bin/python -m scope_jax train configs/ssp/atlas.toml --run '/data/runs/It'"'"'s my run' --set train.steps=5
