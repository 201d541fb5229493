"""The header of every card: its command, hardware and expectation, and whether anybody has run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scope_jax.config import load_card
from scope_jax.systems import scope

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "configs").rglob("*.toml"))
# Where what was seen is written down, or is run and looked at.
RECORDS = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "tests" / "equivalence" / "test_smoke_wikipedia.py")
NOT_RUN = "This card has not been run by us."


def header(path: Path) -> str:
    """The comments before the first key, as one text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    first = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.removeprefix("#").strip() for line in lines[:first])


def recorded(path: Path) -> bool:
    """True if a record names the card or the folder of its like."""
    name = path.relative_to(ROOT)
    texts = [record.read_text(encoding="utf-8") for record in RECORDS]
    return any(str(name) in text or f"`{name.parent}/`" in text for text in texts)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_header_says_how_to_run_the_card_on_what_and_what_to_expect(path: Path) -> None:
    text = header(path)
    assert re.search(rf"scope-jax train {re.escape(str(path.relative_to(ROOT)))} --run runs/[\w.-]+", text)
    assert re.search(r"Hardware: +\w", text) and re.search(r"Expect[:( ]", text)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_card_says_that_it_was_not_run_exactly_if_no_record_names_it(path: Path) -> None:
    assert (NOT_RUN in header(path)) == (not recorded(path))


@pytest.mark.parametrize("path", [path for path in CARDS if "billion" in header(path)], ids=lambda path: path.stem)
def test_the_arithmetic_of_a_header_is_right(path: Path) -> None:
    """Bytes of a weight in float32: 4 itself, 8 its two moments; SSP keeps the reference with them."""
    text, cfg = header(path), load_card(path)
    billions = float(re.findall(r"([\d.]+) billion weights", text)[0])
    assert cfg.model.param_dtype == "float32"
    if cfg.system == "scope":
        assert f"{12 * billions:.0f} GB for each policy" in text and scope.uses_base(cfg)
        assert f"{4 * billions:.0f} GB for the base" in text
    else:
        assert f"KL reference take about {16 * billions:.0f} GB" in text
