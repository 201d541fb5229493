"""Cards that read from elsewhere, which is copied to local files first: data, corpora, models and prompts from object
storage, and models from the hub (`hub`; data sets of the hub are read where they are used)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.run import hub
from scope_jax.run.objects import fetch, is_object


def fetched(
    cfg: Config,
    tell: Callable[[str], None] | None = None,
    left: Collection[str] = (),
    missing: Callable[[str, FileNotFoundError], None] | None = None,
    only: Collection[str] = (),
) -> Config:
    """The card with local copies instead of its gs:// and s3:// paths and its models of the hub; the card itself if it
    has none.

    The copies lie in `train.spool` and in the hub's cache; what has not changed since it was copied is not read again.
    Each machine has its own. left: models of the hub that are left where they are. missing(name, error): is told of a
    model that the hub does not give, which then keeps its name; without it the error is raised. only: the tables of the
    card that are read, (): all. Raises FileNotFoundError for what does not exist and ConnectionError for storage that
    cannot be used.
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

    table = cfg.model_dump()
    read = set(only or table)
    table |= {key: local(table[key]) for key in read}
    for section, key, weights in _models(table, read):
        name = section[key]
        if name is not None and name not in left and hub.is_name(name):
            if tell is not None and name not in places:
                tell(f"looking for {name} on the hub; it is downloaded if it is not in the cache")
            try:
                places[name] = section[key] = str(hub.snapshot(name, hub.WHOLE if weights else hub.SMALL))
            except FileNotFoundError as error:
                if missing is None:
                    raise
                missing(name, error)
    return type(cfg).model_validate(table) if places else cfg


def _models(table: dict[str, Any], read: Collection[str]) -> list[tuple[dict[str, Any], str, bool]]:
    """(table, key, whether its weights are read) of every place in the tables that are read that names a model's
    folder."""
    model, found = table["model"], []
    if "model" in read:
        found = [(model, "checkpoint", True), (model, "tokenizer", False)]
        found += [(model["policies"], name, True) for name in model["policies"]]
    names = [name for name in ("retrieval", "clusters") if name in read and table[name] is not None]
    return found + [(table[name]["encoder"], "checkpoint", True) for name in names]
