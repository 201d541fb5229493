"""What a run is made of and what it leaves behind: assembly, checkpoints, metrics, conversion."""
