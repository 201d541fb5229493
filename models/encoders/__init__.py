"""Encoders of texts, for retrieval."""
