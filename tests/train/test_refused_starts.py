"""A start that is refused after its parts were built closes the services of the tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.run import start as starting
from scope_jax.run.config_file import to_toml
from scope_jax.run.world import World
from tests.train import runs


def test_services_are_closed_by_a_start_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the folder has metrics but no checkpoint, which is found out when everything is there."""
    closed: list[World] = []
    monkeypatch.setattr(World, "close", lambda world: closed.append(world))
    cfg = load_card(runs.ROOT / "configs" / "ssp" / "atlas.toml", ("train.save_every=1",))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(to_toml(cfg))
    (run / "metrics.jsonl").write_text('{"step": 90}\n')
    with pytest.raises(UserError, match="metrics up to step 90 but no checkpoint"):
        starting.start(cfg, run, lambda sentence: None, lambda name, done, total: None)
    assert len(closed) == 1
