"""The paper's card and the documents about SSP say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from scope_jax.config import SSPSection, load_card
from scope_jax.systems import ssp

ROOT = Path(__file__).parents[2]
CARD = ROOT / "configs" / "ssp" / "qwen2.5-7b.toml"


def test_the_papers_card_holds_table_4():
    cfg = load_card(CARD)
    assert (cfg.train.batch_size, cfg.train.steps) == (256, 200)
    assert (cfg.optimizer.learning_rate, cfg.optimizer.warmup_steps) == (1e-6, 5)
    assert cfg.rollout.max_length == 4096 + 8192
    proposer, solver = cfg.ssp.proposer, cfg.ssp.solver
    assert (proposer.samples, proposer.loss.advantage, proposer.loss.kl) == (1, "none", "none")
    assert (solver.samples, solver.loss.advantage, solver.loss.kl_coef) == (5, "group-mean", 0.01)
    assert cfg.train.batch_size // proposer.loss.mini_batches == 128 == cfg.train.batch_size // solver.loss.mini_batches
    assert (cfg.ssp.fill, cfg.ssp.replay_reset_every, cfg.ssp.verify, cfg.ssp.noise_documents) == (
        "replay-reset",
        10,
        "policy",
        4,
    )
    assert [update.role for update in ssp.updates(cfg)] == ["solver", "proposer"]
    assert cfg.ssp.model_dump(exclude={"prompts"}) == SSPSection().model_dump(
        exclude={"prompts"}
    )  # the defaults are it


def test_every_value_of_the_card_cites_its_place():
    lines = [line for line in CARD.read_text().splitlines() if "=" in line and not line.startswith("#")]
    names = ("system =", "name =", "path =", "limit =")
    bare = [line for line in lines if "#" not in line and not line.startswith(names)]
    assert lines and bare == []


def test_the_ablations_of_the_document_are_accepted():
    text = (ROOT / "docs" / "ssp.md").read_text()
    section = text.split("## The paper's ablations")[1].split("##")[0]
    settings = re.findall(r"`(ssp\.[\w.]+=[^`]+)`", section)
    assert len(settings) >= 15
    for setting in settings:
        key = setting.partition("=")[0].split(".")
        changed = load_card(CARD, [setting]).model_dump()
        value = load_card(CARD).model_dump()
        for part in key:
            changed, value = changed[part], value[part]
        assert changed != value, f"{setting} changes nothing"


def test_the_document_lists_every_option():
    text = (ROOT / "docs" / "ssp.md").read_text().split("## Options")[1].split("## The paper's")[0]
    named = set(re.findall(r"`([a-z_]+)`", text.replace("{proposer,solver}.", "")))
    options = set(SSPSection.model_fields) - {"proposer", "solver"}
    assert options <= named, sorted(options - named)
