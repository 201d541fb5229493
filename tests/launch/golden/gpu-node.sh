XLA_CLIENT_MEM_FRACTION=0.8 /checkout/.venv/bin/python -m scope_jax train configs/ssp/atlas.toml --run '/data/runs/It'"'"'s my run' --set train.steps=5
