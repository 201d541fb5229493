"""The header of every card: its command, hardware and expected result, and whether it has been run."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from scope_jax.data.published import RECIPES
from scope_jax.games import load_card, r_zero, scope, spice

ROOT = Path(__file__).parents[2]
CARDS = sorted(
    path for path in (ROOT / "configs").rglob("*.toml") if path.relative_to(ROOT / "configs").parts[0] != "exams"
)
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
# Cards that were run, but whose figures are no tables of benchmarks/results: docs/results.md has them, or a test.
RUN = {
    "absolute_zero/adapters/atlas",
    "dr_zero/adapters/atlas",
    "rlvr/smollm2-135m",
    "scope/ablations/no-planning",
    "scope/ablations/six-iterations",
    "scope/adapters/atlas",
    "score/ablations/atlas-evaluator-token-mean",
    "sft/smollm2-135m",
    "ssp/adapters/atlas",
    "ssp/adapters/qwen3-0.6b-cpu",
    "ssp/smoke-wikipedia",
}
# Bytes of a token's keys and values in bfloat16: 2 · layers · key heads · head size · 2 (the models' config.json).
CACHE = {
    "qwen3-4b": 2 * 36 * 8 * 128 * 2,
    "qwen3-8b": 2 * 36 * 8 * 128 * 2,
    "octothinker-3b": 2 * 28 * 8 * 128 * 2,
    "octothinker-8b": 2 * 32 * 8 * 128 * 2,
}
NOT_RUN = "This card has not been run by us."


def header(path: Path) -> str:
    """The comments before the first key, as one text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    first = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.removeprefix("#").strip() for line in lines[:first])


@cache
def recorded() -> set[str]:
    """The cards that were run."""
    tables = [table for path in RESULTS for table in json.loads(path.read_text(encoding="utf-8"))["tables"].values()]
    return RUN.union(*tables)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_header_has_the_command_the_hardware_and_the_expected_result(path: Path) -> None:
    text = header(path)
    assert re.search(rf"scope-jax train {re.escape(str(path.relative_to(ROOT)))} --run runs/[\w.-]+", text)
    assert re.search(r"Hardware: +\w", text) and re.search(r"Expect[:( ]", text)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_card_says_not_run_if_and_only_if_no_record_names_it(path: Path) -> None:
    name = path.relative_to(ROOT / "configs").with_suffix("").as_posix()
    assert (NOT_RUN in header(path)) == (name not in recorded())


@pytest.mark.parametrize("path", [path for path in CARDS if "data/" in path.read_text()], ids=lambda path: path.stem)
def test_a_header_names_the_commands_that_make_its_files(path: Path) -> None:
    """Every file under data/ that the card itself reads is written by one of the commands of its header.

    Clusters are made from such a file; the answers that a model wrote for RLVR are nobody's publication.
    """
    files = set(re.findall(r'^\w+ = "(data/[^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE))
    made = re.findall(r"scope-jax data ([\w.-]+) data/", header(path))
    assert set(made) <= set(RECIPES)
    written = set(re.findall(r"scope-jax data [\w.-]+ (data/\S+)", header(path)))
    others = {"data/spell/clusters.jsonl", "data/spell/web"} if "--clusters" in header(path) else set()
    assert files <= written | others | ({"data/spell/questions.jsonl"} if path.stem == "given-questions" else set())


@pytest.mark.parametrize("path", [path for path in CARDS if "billion" in header(path)], ids=lambda path: path.stem)
def test_the_arithmetic_of_a_header_is_right(path: Path) -> None:
    """Bytes of a weight: 4 itself and 8 its two moments, in float32; 2 in the reference (SPELL has none)."""
    text, cfg = header(path), load_card(path)
    billions = float(re.findall(r"([\d.]+) billion weights", text)[0])
    assert cfg.model.param_dtype == "float32" and cfg.model.compute_dtype == "bfloat16"
    if cfg.system == "spice":  # no KL term, and so no reference
        tokens = cfg.rollout.slots * cfg.rollout.max_length
        cache = tokens * CACHE[path.stem] / 1e9
        assert not spice.GAME.uses_base(cfg) and all(update.card.kl == "none" for update in spice.GAME.updates(cfg))
        assert (
            f"{12 * billions:.0f} GB in float32 with Adam's moments ({12 * billions / 8:.1f} GB on each of 8)" in text
        )
        group = 1 if cfg.rollout.mesh is None else cfg.rollout.mesh.tensor
        place = "whole on each" if group == 1 else f"whole in each tensor group of {group}"
        assert f"the engine's copy {2 * billions:.0f} GB in bfloat16, {place}" in text and cfg.mesh.tensor == 1
        assert f"KV cache of 128 slots of 12,288 tokens {cache:.0f} GB ({cache / 8:.1f})" in text
    elif cfg.system == "scope":
        assert f"{12 * billions:.0f} GB for each policy" in text and scope.GAME.uses_base(cfg)
        assert f"{2 * billions:.0f} GB for the base" in text
    elif cfg.system == "r_zero":
        assert f"{12 * billions:.0f} GB for each policy" in text and len(r_zero.GAME.policies(cfg)) == 2
        assert f"{2 * billions:.0f} GB for the reference in bfloat16" in text
    elif cfg.system == "dr_zero":
        assert f"Adam's moments in float32 take {12 * billions:.0f} GB" in text
    elif cfg.system == "spell":
        assert f"take about {12 * billions:.0f} GB in float32" in text
    else:
        assert f"KL reference in bfloat16 take about {14 * billions:.0f} GB" in text
