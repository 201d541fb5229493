"""Text that models read and write: messages, prompt files, tags, dialects, JSON schemas."""
