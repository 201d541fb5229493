"""Corpus preparation: from corpora to clusters of related documents; knows texts and vectors, no model and no card."""
