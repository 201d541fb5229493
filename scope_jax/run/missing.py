"""Which files of a card are not here; imports nothing heavy, so that a list of cards is quick."""

from __future__ import annotations

from pathlib import Path

from scope_jax.config import Config
from scope_jax.config.base import paths

# Written by a run, or names rather than paths.
NOT_READ = ("retrieval.index", "train.compilation_cache", "train.spool", "system", "model.dialect", "clusters.folder")
FILES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".txt", ".jinja", ".toml")


def missing(cfg: Config) -> list[str]:
    """ "key: path" for what the card reads and is not here, without opening anything. Names of data sets on the hub
    and paths on object storage are not looked up."""
    found = []
    for key, path in paths(cfg):
        if key in NOT_READ or path.startswith(("gs://", "s3://")):
            continue
        if Path(path).exists():
            continue
        from_hub = not path.endswith(FILES) and "checkpoint" not in key and "prompts" not in key
        found.append(f"{key}: {path}" + (" (or a data set of the hub of this name)" if from_hub else ""))
    return found
