XLA_FLAGS=--xla_force_host_platform_device_count=4 JAX_PLATFORMS=cpu /checkout/.venv/bin/python -m scope_jax train configs/ssp/atlas.toml --run '/data/runs/It'"'"'s my run' --set train.steps=5
