"""Steps that are played ahead: what a checkpoint holds of them, and which cards may not have them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scope_jax.config import CardError
from scope_jax.errors import UserError
from scope_jax.games import GAMES, load_card, scope
from scope_jax.games.scope import state
from scope_jax.learner.types import Datum, Episode, Judgement, Reply
from scope_jax.run import card_rules
from scope_jax.run.meshes import all_generate, divided_devices
from scope_jax.run.opened import OpenedCard
from scope_jax.run.steps import PlayedStep, packed, unpacked

ROOT = Path(__file__).parents[2]
DEVICES = "rollout.devices=4"
ON = "train.one_step_off_policy=true"


def card(name: str, *sets: str):
    return load_card(ROOT / "configs" / name, [DEVICES, ON, *sets])


def test_a_played_step_comes_back_bit_for_bit() -> None:
    logprobs = np.array([0.0, -1e-30, -np.float32(1) / 3, -np.inf], np.float32)
    datum = Datum(np.array([5, 0, 151_000, 7], np.int32), np.array([False, True, True, True]), logprobs)
    picked = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    measured = replace(datum, entropies_T=np.array([0, 1, 2, 3], np.float32), picked_TLk=picked)
    verdict = Judgement("grader", "§ 1", (Reply("ja 👍"), Reply("", "no")), None)
    episode = Episode(
        role="solver",
        policy="actor",
        group="17",
        datums=(measured, datum),
        reward=1 / 3,
        parts={"f1": 0.1, "none": math.inf},
        trained=False,
        temperature=0.7,
        padding=True,
        text={"turns": [{"text": "é", "score": np.float32(0.1)}], "count": np.int64(3)},
        judgements=(verdict,),
    )
    played = PlayedStep([episode, episode], {"pool": [1, None, {"a": 0.1}]}, {"reward": 1 / 3, "nothing": math.nan})
    text = packed(played)
    assert json.loads(json.dumps(text)) == text and packed(played) == text
    found = unpacked(text)
    assert packed(found) == text
    assert found.memory == played.memory and found.metrics["reward"] == 1 / 3 and math.isnan(found.metrics["nothing"])
    again = found.episodes[1]
    for name in ("ids_T", "sampled_T", "logprobs_T"):
        left, right = getattr(again.datums[1], name), getattr(datum, name)
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    entropies = again.datums[0].entropies_T
    assert again.datums[1].entropies_T is None and entropies is not None and entropies.tolist() == [0, 1, 2, 3]
    experts = again.datums[0].picked_TLk
    assert experts is not None and experts.dtype == np.uint8 and np.array_equal(experts, picked)
    assert again.judgements == (verdict,) and again.text["turns"][0]["score"] == np.float32(0.1).item()
    same = ("role", "policy", "group", "reward", "parts", "advantage", "trained", "temperature", "weight", "padding")
    assert all(getattr(again, name) == getattr(episode, name) for name in same)


def test_which_games_wait() -> None:
    cfg = load_card(ROOT / "configs/scope/atlas.toml", ["scope.steps_per_iteration=2"])
    cards = {name: load_card(ROOT / f"configs/{name}/atlas.toml") for name in GAMES}
    starts = {name: GAMES[name].start(own) for name, own in cards.items()}
    waiting = {name for name, own in cards.items() if GAMES[name].waits(own, starts[name])}
    assert waiting == {"scope", "r_zero", "dr_zero"}  # those with phases
    memory = scope.GAME.start(cfg)
    places = []
    for _ in range(2):
        places.append((memory["stage"], scope.GAME.waits(cfg, memory)))
        memory = state.after_step(cfg, memory, state.ScopeOutcome(rows=1, tasks=[], scores=[]))
    places.append((memory["stage"], scope.GAME.waits(cfg, memory)))
    assert places == [("challenger", True), ("challenger", False), ("tasks", True)]


def test_which_devices_learn() -> None:
    """Of each process the first ones; on TPU both parts must be boxes of the torus."""
    cfg = load_card(ROOT / "configs/ssp/atlas.toml", ["rollout.devices=2"])

    def chips(rows: int) -> list[SimpleNamespace]:
        """Hosts of 2 x 2 chips, in so many rows of one."""
        places = [(x, 2 * row + y) for row in range(rows) for y in range(2) for x in range(2)]
        return [SimpleNamespace(process_index=y // 2, coords=(x, y, 0)) for x, y in places]

    one, two = chips(1), chips(2)
    assert divided_devices(cfg, one) == (one[:2], one[2:])
    with pytest.raises(ValueError, match="are no box of the torus"):
        divided_devices(cfg, two)
    here = [SimpleNamespace(process_index=n // 4) for n in range(8)]
    assert divided_devices(cfg, here) == ([*here[:2], *here[4:6]], [*here[2:4], *here[6:]])
    with pytest.raises(ValueError, match="a process has 2 devices, of which at least one must learn"):
        divided_devices(cfg, [*here, *[SimpleNamespace(process_index=2)] * 2])
    assert divided_devices(all_generate(cfg), two) == (two, two)
    shared = load_card(ROOT / "configs/ssp/atlas.toml")
    assert divided_devices(shared, two) == (two, two)


def test_cards_that_cannot_play_ahead() -> None:
    with pytest.raises(CardError, match=r"which needs devices of its own; set rollout\.devices"):
        load_card(ROOT / "configs/ssp/atlas.toml", [ON])
    cfg = card("ssp/atlas.toml", "ssp.proposer.loss.rollout_cap=2.0")
    with pytest.raises(UserError, match=r"the episodes of solver come from older weights.* set rollout_cap"):
        card_rules.ahead(OpenedCard(cfg))
    cfg = card("ssp/atlas.toml", "ssp.proposer.loss.rollout_cap=2.0", 'ssp.solver.loss.old_logprobs="rollout"')
    card_rules.ahead(OpenedCard(cfg))
    caps = ("scope.challenger.loss.rollout_cap=2.0", "scope.solver.loss.rollout_cap=2.0")
    cfg = card("scope/atlas.toml", *caps)
    card_rules.ahead(OpenedCard(cfg))
    cfg = card("scope/atlas.toml", *caps, "model.adapter.rank=4")
    card_rules.ahead(OpenedCard(cfg))
    off = load_card(ROOT / "configs/scope/atlas.toml", [DEVICES])
    card_rules.ahead(OpenedCard(off))
