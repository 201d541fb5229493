"""Atlas: a small world of true facts in which every game runs end to end on a laptop CPU (docs/results.md)."""
