"""Cards that read from object storage: data, corpora, models and prompts are copied to local files first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.run.objects import fetch, is_object


def fetched(cfg: Config, tell: Callable[[str], None] | None = None) -> Config:
    """The card with local copies instead of its gs:// and s3:// paths; the card itself if it has none.

    The copies lie in `train.spool`; what has not changed since it was copied is not read again. Each machine has its
    own. Raises FileNotFoundError for what does not exist and ConnectionError for storage that cannot be used.
    """
    places: dict[str, str] = {}

    def local(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: local(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(local, value))
        if not isinstance(value, str) or not is_object(value):
            return value
        if value not in places:
            if tell is not None:
                tell(f"fetching {value}")
            places[value] = str(fetch(value, Path(cfg.train.spool)).absolute())
        return places[value]

    table = local(cfg.model_dump())
    return Config.model_validate(table) if places else cfg
