"""SCORE's cards on Atlas make the same changes as those of the paper's size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scope_jax.config import load_card

FOLDER = Path(__file__).parents[2] / "configs" / "score"


def _changes(card: Mapping[str, Any], base: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The keys in which a card differs from another, with its values."""
    found: dict[str, Any] = {}
    for key, value in card.items():
        if isinstance(value, Mapping) and isinstance(base[key], Mapping):
            found |= _changes(value, base[key], f"{path}{key}.")
        elif value != base[key]:
            found[f"{path}{key}"] = value
    return found


def test_each_ablation_on_atlas_changes_what_the_papers_does() -> None:
    atlas, paper = (load_card(FOLDER / name).model_dump() for name in ("atlas.toml", "qwen2.5-7b.toml"))
    names = sorted(path.name.removeprefix("atlas-") for path in (FOLDER / "ablations").glob("atlas-*.toml"))
    assert names == sorted(p.name for p in (FOLDER / "ablations").glob("*.toml") if not p.name.startswith("atlas-"))
    for name in names:
        small = load_card(FOLDER / "ablations" / f"atlas-{name}").model_dump()
        large = load_card(FOLDER / "ablations" / name).model_dump()
        assert [key for key in atlas if small[key] != atlas[key]] == ["score"]
        # the rules of train.watch, which Atlas has none of, may differ as well
        assert _changes(small["score"], atlas["score"]) == _changes(large["score"], paper["score"]) != {}
