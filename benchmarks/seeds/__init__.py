"""Trains every card with every seed and makes the tables of docs/results.md: `python -m benchmarks.seeds --help`."""
