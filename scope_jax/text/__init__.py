"""Text that models read and write: messages, prompt files, tags, search dialects. Imports nothing else of scope_jax."""
