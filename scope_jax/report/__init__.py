"""Human-readable output: the progress of a command, and the curves and report page of a run."""
