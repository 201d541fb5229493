"""Output for people: progress while a command runs, curves and page of a run afterwards."""
