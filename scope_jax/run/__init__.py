"""The parts of a run and the files it writes: assembly, checkpoints, metrics, conversion."""
