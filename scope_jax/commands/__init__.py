"""Commands of the command line with many options of their own; `scope_jax.cli` registers them."""
