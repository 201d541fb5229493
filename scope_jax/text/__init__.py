"""Text that models read and write: messages, prompt files, tags, search dialects. Knows nothing else of scope_jax."""
