"""Runs that learn from a teacher, those of examples/distillation.py: two processes, and steps that are played ahead."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scope_jax.games import load_card
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tools import Agent, Rollout, single_turn
from scope_jax.run.assemble import assemble
from scope_jax.run.teacher_client import PROBED
from scope_jax.text.messages import Messages
from tests.flags import fake_devices
from tests.train import runs
from tests.train import test_processes as several
from tests.train.test_scoring import Endpoint

FOLDER = runs.ROOT / "assets" / "atlas" / "ssp" / "base"
SMALL = (
    "train.save_every=1",
    "train.batch_size=4",
    "evaluate.sets=[]",
    "rollout.slots=8",
    "learner.micro_batch_rows=4",
    "optimizer.eps=1e-6",  # as in test_processes.py
    "distillation.student.samples=2",
)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The setting of a teacher: the base with its weights moved at random, so far that rounding is small beside it."""
    folder = tmp_path_factory.mktemp("teacher")
    for file in FOLDER.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    rng = np.random.default_rng(0)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    moved = {
        name: w + rng.normal(0, 0.05, w.shape).astype(w.dtype) if w.ndim == 2 else w for name, w in weights.items()
    }
    save_file(moved, file, metadata={"format": "pt"})
    return f'teachers.teacher.checkpoint="{folder}"'


def arguments(run: Path, *sets: str) -> list[str]:
    """`train` of the example's card, for the command line."""
    overrides = [part for override in (*SMALL, *sets) for part in ("--set", override)]
    return ["train", str(runs.ROOT / "examples" / "distillation.toml"), "--run", str(run), *overrides]


def test_a_prompt_declares_the_tools_of_its_agent_unless_it_says_itself_which(tmp_path: Path) -> None:
    """The prompts of the games describe the search themselves, so they declare none where templates cannot."""
    sets = [f'teachers.teacher.checkpoint="{FOLDER}"', "rollout.slots=1"]
    trainer = assemble(load_card(runs.ROOT / "examples" / "distillation.toml", sets), tmp_path)
    states, _, _ = trainer.start(None)
    world = trainer.world
    world.sampler.publish(states)
    clock = Tool("clock", lambda: "noon", {"type": "function", "function": {"name": "clock"}})
    agent = Agent("actor", single_turn(1.0, 1), tools=("search", clock), calls="first")
    question = "Question: What is the capital of Italy?"
    shown = []
    for messages in (Messages(question, tools=()), Messages(question)):
        ((completion,),) = world.tools(0).play("r", [Rollout("a", messages)], agent)
        shown.append(world.tokenizer.decode(completion.rows[0].prompt_ids.tolist()))
    assert [prompt.count('"name": "search"') for prompt in shown] == [0, 1]
    assert [prompt.count('"name": "clock"') for prompt in shown] == [0, 1]


@pytest.mark.slow
def test_two_processes_rate_and_learn_as_one(tmp_path: Path, teacher: str) -> None:
    """Under the policy, the base, a folder and an endpoint, which is asked for each row once."""
    tokenizer, asked, specs = Tokenizer.load(FOLDER), [], []
    with Endpoint(lambda id: tokenizer.decode([id])) as endpoint:
        for processes, name in ((1, "one"), (2, "two")):
            sets = (teacher, endpoint.sets, "train.steps=1", 'system="tests/train/rated.py"')
            spec = {"processes": processes, "devices": 4 // processes, "log": str(tmp_path / f"{name}.log")}
            specs.append(spec | {"arguments": arguments(tmp_path / name, *sets)})
            several.do(tmp_path, specs[-1])
            rows = [body["prompt"] for body in endpoint.asked]
            asked.append(sorted(ids for ids in rows if ids[:PROBED] != sorted(ids[:PROBED])))  # without the probes
            endpoint.asked.clear()
    several.same_step(tmp_path / "one", tmp_path / "two")
    assert asked[0] == asked[1] and len(asked[0]) == 8
    one, two = (runs.lines(tmp_path / name, "metrics.jsonl")[-1] for name in ("one", "two"))
    rated = [name for name in one if name.startswith("rated/")]
    assert rated == ["rated/actor", "rated/base", "rated/teacher", "rated/far"]
    np.testing.assert_allclose([two[name] for name in rated], [one[name] for name in rated], rtol=1e-5)
    assert one["rated/actor"] == one["rated/base"] and len({round(one[name], 3) for name in rated}) == 3
    assert one["student/teacher_k2"] > 0.01 and one["student/idle_sequences"] == 0


@pytest.mark.slow
def test_a_teacher_rates_steps_that_are_played_ahead_and_a_killed_run_has_the_same_bits(
    tmp_path: Path, teacher: str
) -> None:
    """On one device that learns and one that generates, and where the teacher is meanwhile."""
    ahead = ("rollout.devices=1", "train.one_step_off_policy=true", "train.steps=4", "train.keep=9")
    faster = "optimizer.learning_rate=1e-3"

    def begin(name: str, *sets: str) -> subprocess.Popen[str]:
        chosen = (teacher, "distillation.student.loss.rollout_cap=2.0", faster, *sets)
        command = [*runs.command("", "", ())[:3], *arguments(tmp_path / name, *chosen)]
        return runs.start(command, XLA_FLAGS=fake_devices(2))

    runs.end(begin("whole", *ahead))
    runs.end(begin("in turn", "rollout.devices=1", "train.steps=1"))
    process = begin("killed", *ahead)
    runs.wait_for(process, lambda: 2 in runs.saved(tmp_path / "killed"))
    os.kill(process.pid, signal.SIGKILL)
    runs.end(process, -signal.SIGKILL)
    assert 4 not in runs.saved(tmp_path / "killed")
    runs.end(begin("killed", *ahead))
    runs.same(tmp_path / "whole", tmp_path / "killed")
    metrics = runs.lines(tmp_path / "whole", "metrics.jsonl")
    assert [line["staleness"] for line in metrics] == [0.0, 1.0, 1.0, 1.0]
    rated = [line["student/teacher_k2"] for line in metrics]
    assert rated[-1] < rated[0]
    left, right = runs.arrays(tmp_path / "whole", 1), runs.arrays(tmp_path / "in turn", 1)
    assert left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)
