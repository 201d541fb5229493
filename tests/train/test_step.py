"""One small step of the demo: engine and learner agree on the log-probs of the sampled tokens."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from scope_jax.config import SamplingSection
from scope_jax.games import load_card
from scope_jax.learner import advantages, batching, splitting
from scope_jax.learner.state import TrainState
from scope_jax.learner.types import Episode
from scope_jax.play.game import play_step
from scope_jax.play.tools import Agent, Rollout
from scope_jax.run.assemble import Trainer, assemble
from scope_jax.text.messages import Messages
from scope_jax.train import learn

SMALL = ("train.batch_size=8", "rollout.slots=16", "evaluate.sets=[]", "ssp.solver.samples=3")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return assemble(load_card("configs/ssp/atlas.toml", SMALL), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def started(trainer: Trainer) -> dict[str, TrainState]:
    states, _, step = trainer.start(None)
    assert step == 0
    trainer.world.sampler.publish(states)
    return states


@pytest.fixture(scope="module")
def episodes(trainer: Trainer, started: dict[str, TrainState]) -> list[Episode]:
    world = trainer.world
    played, _, metrics = play_step(world.game, world.cfg, world.tools(0), world.game.start(world.cfg), 0)
    assert metrics["solver/searches"] > 0
    return played


@pytest.mark.slow  # test_rows.py compares them with a smaller model
def test_engine_and_learner_agree_on_every_token_of_a_step(
    trainer: Trainer, started: dict[str, TrainState], episodes: list[Episode]
) -> None:
    """Within 1e-4 in float32, over every sampled token of both roles, also after searches and their observations."""
    for update in trainer.world.game.updates(trainer.world.cfg):
        rated, _ = advantages.assign([e for e in episodes if e.role == update.name], update.card)
        for batch, part in zip(
            trainer.learner.pack(rated, update.card),
            splitting.mini_batches(rated, update.card.mini_batches),
            strict=True,
        ):
            scores = trainer.learner.score(started[update.policy], batch, reference=False)
            assert scores.old_MN is not None
            learner_N = batching.unpack(batch, scores.old_MN)
            scored = [e for e in splitting.trainable(part) if splitting.has_term(e, update.card)]
            engine_N = np.concatenate([d.logprobs_T[d.sampled_T] for e in scored for d in e.datums])
            assert len(learner_N) > 50
            np.testing.assert_allclose(learner_N, engine_N, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_row_decodes_to_the_text_of_the_episode(trainer: Trainer, episodes: list[Episode]) -> None:
    """Prompt, sampled text and observations decode to the text, in order, and only sampled text is marked as such."""
    for episode in episodes:
        (datum,) = episode.datums
        turns = episode.text["turns"]
        text = trainer.world.tokenizer.decode(datum.ids_T.tolist())
        place = 0
        for turn in turns:
            place = text.index(turn["text"], place) + len(turn["text"])
        written = trainer.world.tokenizer.decode(datum.ids_T[datum.sampled_T].tolist())
        assert all(turn["text"] in written for turn in turns if turn["kind"] == "sampled")
        assert "<information>" not in written or "<information>" in "".join(
            turn["text"] for turn in turns if turn["kind"] == "sampled"
        )


@pytest.mark.slow
def test_a_step_changes_the_weights_and_sets_advantages(trainer: Trainer, episodes: list[Episode]) -> None:
    states, _, _ = trainer.start(None)
    before = jax.device_get(states["actor"].params)
    after, rated, baselines, metrics = learn(trainer, states, episodes, {})
    moved = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - b).max()), after["actor"].params, before)
    assert max(jax.tree.leaves(moved)) > 0
    assert all(e.advantage is not None for e in rated if e.trained)
    assert metrics["solver/mismatch_max"] < 1e-4
    assert metrics["solver/skipped"] == 0
    assert baselines == {}


def test_the_limits_of_a_call_reach_the_engine(trainer: Trainer, started: dict[str, TrainState]) -> None:
    tools, messages = trainer.world.tools("limits"), Messages("Question: What is the capital of Austria?")
    tokens = tools.prompt_tokens(messages)

    def said(max_response_tokens: int = 8192, **limits: Any) -> tuple[int, str]:
        sampling = SamplingSection(max_tokens=48, max_response_tokens=max_response_tokens)
        ((completion,),) = tools.play("solver", [Rollout("0", messages)], Agent("actor", sampling, **limits))
        return len(completion.ids_T), completion.finish_reason

    length, finish = said(max_prompt_tokens=tokens)
    assert length > 3 and finish != "overflow"
    assert said(max_response_tokens=3) == (3, "length")
    assert said(max_prompt_tokens=tokens - 1) == (0, "overflow")
