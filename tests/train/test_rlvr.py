"""RL with a verifiable reward on Atlas: a step, and a run with a function of the user's that is killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.games import load_card, rlvr
from scope_jax.play.game import play_step
from scope_jax.run.assemble import assemble
from scope_jax.run.files import CALLS, read_records
from scope_jax.train import learn
from tests.train import runs, test_processes

ROWS = "assets/atlas/r_zero/questions_held_out.jsonl"
SMALL = (
    "train.steps=3",
    "train.batch_size=2",
    "train.save_every=1",
    "rollout.slots=16",
    "learner.micro_batch_rows=4",
    "learner.logprob_chunk=128",
    "rlvr.samples=4",
    f'evaluate.sets=[{{name="few", path="{ROWS}", limit=2}}]',
)
REWARD = """
import json, os
def reward(prompt, completion, answer, **row):
    value = int.from_bytes(os.urandom(6), "big") / 2**48
    with open(LOG, "a") as file:
        file.write(json.dumps([prompt, completion, answer, row, value]) + "\\n")
    return value
"""


def test_a_step_trains_the_policy(tmp_path: Path) -> None:
    sets = [one for one in SMALL if not one.startswith("evaluate")]
    cfg = load_card(runs.ROOT / "configs" / "rlvr" / "atlas.toml", sets)
    trainer = assemble(cfg, tmp_path)
    world = trainer.world
    try:
        states, memory, _ = trainer.start(None)
        world.sampler.publish(states)
        episodes, after, metrics = play_step(rlvr.GAME, cfg, world.tools(0), memory["game"], 0)
        assert len(world.rows) == 190 and len(world.exams["held_out"]) == 50 and after == {}
        assert {row["question"] for row in world.rows}.isdisjoint(row["question"] for row in world.exams["held_out"])
        assert len(episodes) == 8 and {episode.reward for episode in episodes} == {0.0, 1.0}
        assert metrics["policy/reward"] == np.mean([episode.reward for episode in episodes])
        assert learn(trainer, states, episodes, {})[-1]["policy/grad_norm"] > 0
    finally:
        world.close()


@pytest.mark.slow
def test_a_step_with_searches_trains_the_policy(tmp_path: Path) -> None:
    """Of the base of Search Self-play, which has learned to search."""
    atlas = runs.ROOT / "assets" / "atlas"
    asked = (atlas / "prompts" / "ssp" / "solver.txt").read_text(encoding="utf-8").strip()
    given = [
        json.loads(line) for line in (atlas / "questions_train.jsonl").read_text(encoding="utf-8").splitlines()[:120]
    ]
    rows = [{"prompt": asked.format(question=row["question"]), "answers": row["answers"]} for row in given]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sets = [
        *SMALL[:-1],
        f"model.checkpoint={atlas / 'ssp' / 'base'}",
        f"data.problems={tmp_path / 'rows.jsonl'}",
        f'retrieval.corpus="{atlas / "corpus.jsonl"}"',
        "retrieval.top_k=2",
        "rollout.max_length=768",
        "learner.buckets=[768]",
        "evaluate.sets=[]",
        'rlvr={tools=["search"], max_turns=4, samples=4, grader="exact-match", answer_in="tag", max_prompt_tokens=400}',
        "rlvr.sampling.max_tokens=64",
    ]
    trainer = assemble(load_card(runs.ROOT / "configs" / "rlvr" / "atlas.toml", sets), tmp_path)
    world = trainer.world
    try:
        states, memory, _ = trainer.start(None)
        world.sampler.publish(states)
        episodes, _, metrics = play_step(rlvr.GAME, world.cfg, world.tools(0), memory["game"], 0)
        kinds = [[turn["kind"] for turn in episode.text["turns"]] for episode in episodes]
        assert metrics["policy/searches"] > 0 and any("observation" in turns for turns in kinds)
        assert learn(trainer, states, episodes, {})[-1]["policy/sequences"] == 8
    finally:
        world.close()


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_rewards_that_were_recorded(tmp_path: Path) -> None:
    """No value comes a second time: the function's are random, and each call is written down."""
    file, log, run = tmp_path / "reward.py", tmp_path / "log.jsonl", tmp_path / "run"
    file.write_text(f"LOG = {str(log)!r}\n{REWARD}", encoding="utf-8")
    command = runs.command("rlvr/atlas.toml", run, (*SMALL, "rlvr.grader=function", f"rlvr.function={file}"))

    def recorded() -> bool:
        calls = run / CALLS / "0.jsonl"
        text = calls.read_text(encoding="utf-8") if calls.is_file() else ""
        return '"step": 2' in text and "each reward" in text and 2 not in runs.saved(run)

    runs.kill_when(command, recorded)
    runs.finish(command)
    episodes = runs.lines(run, "episodes.jsonl")
    called = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    known = {value: (prompt, answer) for prompt, _, answer, _, value in called}
    assert len(episodes) == 24 and len(known) == len(called) == 24 + 2 * 2 + 2  # steps, two exams, before the first
    assert all(known[one["reward"]] == (one["text"]["question"], one["text"]["answers"]) for one in episodes)
    assert {"id", "operations"} == set(called[0][3])
    replayed = CliRunner().invoke(app, ["replay", str(run), "--step", "3"])
    assert replayed.exit_code == 0, replayed.output
    assert len(log.read_text(encoding="utf-8").splitlines()) == len(called)
    file.write_text(file.read_text(encoding="utf-8") + "\n# other code\n", encoding="utf-8")
    assert "other contents of rlvr.function" in runs.end(runs.start([*command, "--set", "train.steps=4"]), 2)
    assert [line["step"] for line in read_records(run / "metrics.jsonl")] == [0, 1, 2, 3]


@pytest.mark.slow
def test_two_processes_call_the_function_for_their_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, card = tmp_path / "reward.py", "rlvr/atlas.toml"
    file.write_text("def reward(completion, **row):\n    return len(completion) % 7\n", encoding="utf-8")
    sets = (*SMALL, "train.steps=1", "evaluate.sets=[]", "rlvr.grader=function", f"rlvr.function={file}")
    monkeypatch.setitem(test_processes.CARDS, card, sets)
    one, two = tmp_path / "one", tmp_path / "two"
    test_processes.do(tmp_path, test_processes.spec(card, one, 1), test_processes.spec(card, two, 2))
    test_processes.same_step(one, two)
