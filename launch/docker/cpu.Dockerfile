# scope-jax on CPU, e.g. for Atlas or to write a plan.
#     docker build --file launch/docker/cpu.Dockerfile --tag scope-jax:cpu .
FROM python:3.11.13-slim-bookworm

RUN useradd --create-home --uid 1000 scope
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /app

# The pinned environment changes less often than the sources. --no-deps is part of it: see requirements.txt.
COPY requirements.txt ./
RUN pip install --no-cache-dir --no-deps -r requirements.txt

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
