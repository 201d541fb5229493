# scope-jax for NVIDIA GPUs. CUDA and cuDNN come with JAX's wheels; the host needs the driver and NVIDIA's container toolkit.
#     docker build --file launch/docker/cuda.Dockerfile --tag scope-jax:cuda .
# Of several nodes, NCCL needs the host's network, shared memory and pinned memory:
#     docker run --gpus all --network host --ipc host --ulimit memlock=-1 --device /dev/infiniband … scope-jax:cuda …
FROM python:3.11.13-slim-bookworm

# NCCL takes InfiniBand and RoCE through these; without them it falls back to TCP.
RUN apt-get update && apt-get install --yes --no-install-recommends libibverbs1 ibverbs-providers librdmacm1 rdma-core \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 scope
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /app

# The pinned environment changes less often than the sources. --no-deps is part of it: see requirements.txt.
COPY requirements.txt ./
RUN pip install --no-cache-dir --no-deps -r requirements.txt
COPY launch/docker/requirements-cuda.txt ./
RUN pip install --no-cache-dir --no-deps -r requirements-cuda.txt

COPY pyproject.toml README.md LICENSE ./
COPY sharding sharding
COPY models models
COPY retrieval retrieval
COPY rollouts rollouts
COPY scope_jax scope_jax
COPY launch launch
COPY configs configs
COPY assets assets
COPY examples examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable .

# Folders that volumes are mounted on must be writable for user 1000.
USER scope
CMD ["scope-jax", "--help"]
