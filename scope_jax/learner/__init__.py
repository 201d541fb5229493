"""The learner: episodes and a loss card in, updated weights and metrics out. Independent of games and prompts."""
