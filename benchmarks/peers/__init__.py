"""Ours against transformers, torch, TRL and Tunix, each in its own process: `python -m benchmarks.peers --help`."""
