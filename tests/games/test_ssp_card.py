"""The paper's card and docs/ssp.md agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

from scope_jax.games import load_card, ssp
from scope_jax.games.ssp.options import SSPSection

ROOT = Path(__file__).parents[2]
CARD = ROOT / "configs" / "ssp" / "qwen2.5-7b.toml"


def test_the_papers_card_equals_the_defaults():
    """test_citations compares its values with the paper."""
    cfg = load_card(CARD)
    assert [update.name for update in ssp.GAME.updates(cfg)] == ["solver", "proposer"]
    assert cfg.options(SSPSection).model_dump(exclude={"prompts"}) == SSPSection().model_dump(exclude={"prompts"})


def test_the_documented_ablations_are_accepted():
    text = (ROOT / "docs" / "ssp.md").read_text()
    section = text.split("## Cards")[1].split("##")[0]
    settings = re.findall(r"`(ssp\.[\w.]+=[^`]+)`", section)
    assert len(settings) >= 15
    for setting in settings:
        key = setting.partition("=")[0].split(".")
        changed = load_card(CARD, [setting]).model_dump()
        value = load_card(CARD).model_dump()
        for part in key:
            changed, value = changed[part], value[part]
        assert changed != value, f"{setting} changes nothing"
