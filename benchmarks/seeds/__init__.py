"""Cards × seeds: one training run for each, and the table of docs/results.md. `python -m benchmarks.seeds --help`."""
