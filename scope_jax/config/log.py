"""The [log] table: what a run records beside its metrics, episodes and judgements."""

from __future__ import annotations

from scope_jax.config.base import Section


class LogSection(Section):
    tokens: bool = False  # every token of the episodes with its behaviour log-prob, in tokens.jsonl.gz
