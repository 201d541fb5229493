"""Corpus preparation: from corpora to clusters of related documents; independent of models and cards."""
