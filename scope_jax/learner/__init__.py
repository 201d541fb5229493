"""The learner: episodes and a loss card in, moved weights and metrics out. It knows no game, prompt or paper."""
