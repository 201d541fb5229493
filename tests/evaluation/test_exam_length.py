"""Exams with a length of their own, through one engine with training: [evaluate] max_length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import Config, SamplingSection
from scope_jax.config.suites import load_suite
from scope_jax.evaluation.evaluate import evaluation
from scope_jax.evaluation.measuring import ExamSet
from scope_jax.evaluation.suites import suite_sets
from scope_jax.games import load_card
from scope_jax.play.tools import Agent, Rollout
from scope_jax.run.assemble import Trainer, assemble
from scope_jax.text.messages import Messages
from tests.shallow import shallow

TRAINED, LONGER = 40, 96
SMALL = ("rollout.slots=4", f"rollout.max_length={TRAINED}")


def card(*sets: str) -> Config:
    return load_card("configs/ssp/atlas.toml", [*SMALL, f"model.checkpoint={shallow('ssp')}", *sets])


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    cfg = card(f"evaluate.max_length={LONGER}", "evaluate.max_tokens=48", "ssp.verify_max_tokens=8")
    return assemble(cfg, tmp_path_factory.mktemp("run"))


def test_episodes_of_training_and_of_exams_end_at_their_own_length(trainer: Trainer) -> None:
    world, messages = trainer.world, Messages("Question: What is the capital of Austria?")
    assert world.local.engine.config.max_length == LONGER
    states, _, _ = trainer.start(None)
    world.sampler.publish(states)

    # of the longest of four episodes, with its prompt
    def length(exam: bool, prompt: int, response: int | None = None, **limits: Any) -> int:
        tools = world.tools("a step", exam=exam)
        ids = (tuple(world.joiner.prompt(messages)) * 9)[:prompt]
        sampling = SamplingSection(temperature=100.0, max_tokens=200, max_response_tokens=response or 8192)
        agent = Agent("actor", sampling, **limits)
        (completions,) = tools.play("solver", [Rollout("0", messages, prompt_ids=ids)], agent, 4)  # few end a turn
        longest = max(len(completion.ids_T) for completion in completions)
        return longest and prompt + longest

    assert length(False, 20) == TRAINED and length(True, 20) == LONGER
    assert length(False, TRAINED) == 0 and length(True, TRAINED) == LONGER  # the prompt fits into an exam only
    assert length(False, 20, response=8) == length(True, 20, response=8) == 28
    assert length(False, 20, max_prompt_tokens=19) == 0


def test_an_engine_has_room_for_the_longer_of_the_two() -> None:
    longer, shorter = (
        card("ssp.verify_max_tokens=8", f"evaluate.max_length={n}", "evaluate.max_tokens=16") for n in (96, 24)
    )
    assert (longer.engine_length, longer.exam_length) == (96, 96)
    assert (shorter.engine_length, shorter.exam_length) == (TRAINED, 24)
    none = card("ssp.verify_max_tokens=8", "evaluate.max_length=96", "evaluate.max_tokens=16", "evaluate.sets=[]")
    assert none.engine_length == TRAINED  # nothing is examined


def test_suites_have_the_length_of_exams_too(tmp_path: Path) -> None:
    """As long as evaluate.max_length says, also where training is shorter."""
    rows = tmp_path / "nq.jsonl"
    rows.write_text('{"question": "What is the capital of Austria?", "answers": ["Vienna"]}\n')
    suite = load_suite("nq").model_copy(update={"path": str(rows), "max_tokens": 16})

    def sets_of(cfg: Config) -> list[ExamSet]:
        return suite_sets(cfg, [suite], False, (), frozenset(), pytest.fail)

    settings = [*SMALL, f"evaluate.max_length={LONGER}", "evaluate.max_tokens=48", "ssp.verify_max_tokens=8"]
    targets = [shallow("ssp")]
    with evaluation(targets, Path("configs/ssp/atlas.toml"), None, settings, sets_of, print) as ready:
        assert ready.world.local.engine.config.max_length == ready.world.cfg.exam_length == LONGER
        assert ready.world.search is None  # the suite's own prompt does not search
    shorter = [*SMALL, "evaluate.max_length=24", "evaluate.max_tokens=16", "ssp.verify_max_tokens=8"]
    with evaluation(targets, Path("configs/ssp/atlas.toml"), None, shorter, sets_of, print) as ready:
        assert (ready.world.local.engine.config.max_length, ready.world.cfg.exam_length) == (TRAINED, 24)
