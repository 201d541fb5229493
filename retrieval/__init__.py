"""Corpus, embedding index and search: from a file of passages to the text a policy reads after its query.

Knows no prompt, tag or tokenizer: the encoder, the token budget's cutting function and the cleaning of foreign text are
functions handed in.
"""
