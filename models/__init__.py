"""Decoder language models as pure functions: configuration, forward pass, weights, tokenizer."""
