"""SPICE's cards on Atlas: each ablation changes one thing, and the demonstrations' longest rows fit."""

from __future__ import annotations

import json
from pathlib import Path

from models.tokenizer import Tokenizer
from scope_jax.config import load_card
from scope_jax.systems.spice import instructions
from scope_jax.systems.spice.records import Document

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "spice"


def test_each_ablation_on_atlas_changes_one_thing_of_its_card() -> None:
    base = load_card(FOLDER / "atlas.toml").model_dump()
    found = {}
    for path in sorted((FOLDER / "ablations").glob("atlas-*.toml")):
        card = load_card(path).model_dump()
        assert [key for key in base if card[key] != base[key]] == ["spice"]
        found[path.stem] = {key: value for key, value in card["spice"].items() if value != base["spice"][key]}
    assert found == {
        "atlas-absolute-zero": {"challenger_reward": "absolute-zero"},
        "atlas-fixed-challenger": {
            "train": "reasoner",
            "challenger": base["spice"]["challenger"] | {"model": "base"},
        },
        "atlas-light-challenger": {"challenger_weight": 0.15},
        "atlas-no-corpus": {"corpus": False},
        "atlas-r-zero": {"challenger_reward": "r-zero"},
        "atlas-threshold": {"challenger_reward": "threshold"},
    }


def test_every_document_and_question_of_atlas_fits_into_the_cards_prompts() -> None:
    cfg = load_card(FOLDER / "atlas.toml", [f"spice.prompts={ROOT / 'assets' / 'atlas' / 'prompts' / 'spice'}"])
    tokenizer = Tokenizer.load(ROOT / "assets" / "atlas" / "spice" / "tokenizer")
    longest = {}
    for name, field in (("documents", "text"), ("questions_held_out", "question")):
        lines = (ROOT / "assets" / "atlas" / "spice" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = map(json.loads, lines)
        longest[name] = max((row[field] for row in rows), key=lambda text: len(tokenizer.encode(text)))
    assert len(tokenizer.encode(longest["documents"])) <= cfg.spice.document_tokens
    written = instructions.for_task(cfg, Document(0, "", longest["documents"]), "expression")
    asked = instructions.for_reasoner(cfg, longest["questions_held_out"])
    for prompt, card in ((written, cfg.spice.challenger), (asked, cfg.spice.reasoner)):
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt.user}])
        assert len(ids) <= card.max_prompt_tokens
        assert len(ids) + card.sampling.max_tokens <= cfg.rollout.max_length
