"""Corpus, embedding index and search: from a file of passages to the text a policy reads after its query.

Independent of prompts, tags and tokenizers: the encoder, the function that truncates results to the token budget and
the one that neutralises untrusted text are passed in.
"""
