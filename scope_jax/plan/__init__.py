"""What a card needs of its hardware: its programs compiled ahead of time, memory, FLOPs, collectives, and what fits."""
