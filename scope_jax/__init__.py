"""Self-play post-training of language models in JAX: the learner, the games and the command line."""
