"""SCORE's cards: ablations on Atlas make the same changes as the paper's; lengths; the table for an external model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scope_jax.games import load_card, parse_config
from scope_jax.games.score.options import options

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


PAPERS = ("qwen2.5-7b.toml", "llama3.1-8b.toml")


@pytest.mark.parametrize("name", PAPERS)
def test_all_turns_with_results_and_a_whole_generation_fit(name: str) -> None:
    """Section 5.1: up to ten tool calls. 15 tokens a turn for the tags of a search and its results."""
    cfg = load_card(FOLDER / name)
    assert cfg.retrieval is not None
    read = 10 * (cfg.retrieval.max_tokens + 15)
    for max_turns, sampling, prompt in (
        (options(cfg).solver.max_turns, options(cfg).solver.sampling, 600),
        (
            options(cfg).evaluator.max_turns,
            options(cfg).evaluator.assessment,
            4096 + 900,
        ),  # with the report
    ):
        assert max_turns == 10
        assert read + sampling.max_tokens <= sampling.max_response_tokens
        assert prompt + read + sampling.max_tokens <= cfg.rollout.max_length


@pytest.mark.parametrize("name", PAPERS)
def test_the_table_for_an_external_model_is_valid(name: str) -> None:
    """A card with its commented end in place of the driver by rules."""
    text, _, block = (FOLDER / name).read_text(encoding="utf-8").partition("# With an external model")
    lines = [line.removeprefix("# ") for line in block.splitlines() if re.match(r"# (\[|\w+ = )", line)]
    table = tomllib.loads(re.sub(r'driver = "rules".*', "", text) + "\n".join(lines))
    card = options(parse_config(table, name)).harness
    assert card.driver == "endpoint" and card.endpoint is not None
    assert card.endpoint.max_tokens_field == "max_completion_tokens" and card.every == 5


@pytest.mark.parametrize("name", PAPERS)
def test_the_header_says_that_table_1_is_no_figure_of_our_exam(name: str) -> None:
    assert "not comparable with our exam" in (FOLDER / name).read_text(encoding="utf-8").partition("system =")[0]
