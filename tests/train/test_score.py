"""SCORE through the whole program: two updates per step, a changing harness, killed runs, DPO."""

from __future__ import annotations

import json
import math
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from scope_jax.report.page import write_report
from tests.train import runs

pytestmark = pytest.mark.slow

# The base was not trained on SCORE: any text counts as a rubric, report or assessment, by a number computed from its
# bytes. With KILL="update 4" in its environment, the process kills itself just before the fourth update.
GAME = """
import os
import signal
import zlib
from collections import Counter
from scope_jax.learner.learner import Learner
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.games import score
from scope_jax.games.score import roles, rules
from scope_jax.games.score.state import Assessment, Rubric

def share(text):
    return zlib.crc32(text.encode()) % 100

def rubric_of(text, harness, constraints=None):
    if share(text) >= 90:
        return None, "no_dimensions"
    others = [name for name in harness.dimension_pool if name != harness.base][: harness.dimension_constraints.k - 1]
    return Rubric(harness.base, {name: harness.dimension_constraints.weight_max for name in others}), ""

def assessments_of(text, count, rubric, max_score):
    points = {name: share(text + name) / 10 for name in rubric.dimensions}
    return tuple(Assessment(points, "checked", "nothing", {"supported": 1, "unsupported": 0, "unknown": 0})
                 for _ in range(count))

calls = Counter()

def kill_at(place):
    calls[place] += 1
    if os.environ.get("KILL") == f"{place} {calls[place]}":
        os.kill(os.getpid(), signal.SIGKILL)

def then(function, place):
    def called(*args):
        result = function(*args)
        kill_at(place)
        return result
    return called

def write_reports(step, query, write=roles.write_reports):
    reports = yield from write(step, query)
    if step.number == 1:
        kill_at("rollouts")
    return reports

def update(*args, made=Learner.update):
    kill_at("update")
    return made(*args)

def save(*args, begun=Checkpoints.save):
    begun(*args)
    args[0].wait()

Checkpoints.save = save  # so that the steps before the one in which it is killed are saved
roles.write_reports = write_reports
roles.refresh = then(roles.refresh, "refresh")
Learner.update = update
rules.rubric_of = rubric_of
rules.assessments_of = assessments_of
roles.report_of = lambda completion: completion.turns[-1].text or None
GAME = score.GAME
"""
CARD = """
system = "{game}"
[model]
checkpoint = "assets/atlas/ssp/base"
compute_dtype = "float32"
dialect = "observation"
[retrieval]
corpus = "assets/atlas/corpus.jsonl"
top_k = 1
max_tokens = 32
[rollout]
slots = 16
max_length = 512
decode_steps = 8
[learner]
buckets = [512]
micro_batch_rows = 4
remat = "none"
logprob_chunk = 128
[optimizer]
learning_rate = 1e-4
warmup_steps = 0
[data]
queries = "{queries}"
[train]
steps = 2
batch_size = 2
save_every = 1
keep = 3
[score]
prompts = "{prompts}"
min_depth = 0
[score.dimensions]
{dimensions}
[score.solver]
samples = 4
max_turns = 2
[score.solver.sampling]
max_tokens = 8
[score.evaluator]
max_turns = 2
[score.evaluator.sampling]
max_tokens = 8
[score.harness]
every = 1
saturated = 0.0
require_search = false
min_tool_calls = 0
max_tool_calls = 0
"""
PROMPTS = {
    "rubric": "{base} and {others} of {dimensions}, {weight_min} to {weight_max}",
    "solver": "Report: {query} {rubric}",
    "scoring": "Judge: {query} {rubric} {reports} {max_score}",
    "harness": "{statistics} {harness}",
}
KEPT = ("factuality", "insight", "coherence", "complexity", "diversity")
LEFT_OUT = ("citation_effectiveness", "completeness", "fairness", "contradiction_handling", "uncertainty_calibration")


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    prompts = folder / "prompts"
    prompts.mkdir()
    for name, text in PROMPTS.items():
        (prompts / f"{name}.txt").write_text(text)
    rows = [{"question": f"Which river lies in {town}?"} for town in ("Paris", "Rome", "Cairo")]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "game.py").write_text(GAME)
    texts = dict.fromkeys(KEPT, "x") | dict.fromkeys(LEFT_OUT, "")
    dimensions = "\n".join(f'{name} = "{text}"' for name, text in texts.items())
    path = folder / "card.toml"
    path.write_text(
        CARD.format(game=folder / "game.py", queries=folder / "queries.jsonl", prompts=prompts, dimensions=dimensions)
    )
    return path


@pytest.fixture(scope="module")
def whole(card: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(runs.command(str(card), run, ()))
    return run


def episodes_of(run: Path, role: str) -> list[dict[str, Any]]:
    return [episode for episode in runs.lines(run, "episodes.jsonl") if episode["role"] == role]


def killed(command: list[str], place: str) -> None:
    """Runs the command, which kills itself at `place` (see GAME)."""
    runs.end(runs.start(command, KILL=place), -signal.SIGKILL)


def test_a_run_trains_both_roles_in_order_under_a_harness_that_changes(whole: Path) -> None:
    metrics = runs.lines(whole, "metrics.jsonl")
    assert [record["step"] for record in metrics] == [1, 2]
    for record in metrics:
        assert record["solver/grad_norm"] > 0 and record["evaluator/grad_norm"] > 0
        assert record["solver/skipped"] == record["evaluator/skipped"] == 0 and record["solver/assessed"] == 1.0
        # rubrics were sampled with the weights before the step, but the evaluator is updated after the solver
        assert record["solver/mismatch_max"] < 1e-4 < record["evaluator/mismatch_max"]
    assert [record["harness/dimensions"] for record in metrics] == [4.0, 5.0]  # by rules
    first, second = (runs.memory(whole, step) for step in (1, 2))
    rewards = [episode["reward"] for episode in episodes_of(whole, "evaluator")]
    assert first["baselines"]["actor/evaluator"] == pytest.approx(0.3 * rewards[0])
    assert second["baselines"]["actor/evaluator"] == pytest.approx(0.21 * rewards[0] + 0.3 * rewards[1])
    assert second["game"]["harness"]["refreshed"] == 2 and second["game"]["scheduler"]["step"] == 2
    harnesses = [episode["text"]["value"] for episode in episodes_of(whole, "harness")]
    assert len(harnesses) == 4 and harnesses[-1] == second["game"]["harness"]["value"]


@pytest.mark.parametrize("place", ["rollouts 1", "update 4", "refresh 2"])
def test_a_killed_run_ends_with_the_same_bits(whole: Path, card: Path, tmp_path: Path, place: str) -> None:
    """Killed in step 2 when the first query has its reports while others are written, between the two updates, and
    after the harness has changed."""
    command = runs.command(str(card), run := tmp_path / "run", ())
    killed(command, place)
    assert runs.saved(run) == [1] and [line["step"] for line in runs.lines(run, "metrics.jsonl")] == [1]
    kept = runs.memory(run, 1)
    assert kept["game"]["harness"]["since"] == kept["game"]["scheduler"]["step"] == 1  # not the initial one
    assert kept["baselines"]["actor/evaluator"] > 0
    runs.finish(command)
    runs.same(whole, run)


DPO = (
    *('score.train=["solver"]', 'score.policies="separate"', 'score.rubric="fixed"', 'score.harness.driver="off"'),
    *('score.solver.loss.objective="dpo"', "score.solver.loss.mini_batches=1"),
)


def test_dpo_trains_on_the_best_and_worst_report_of_a_query_and_resumes(card: Path, tmp_path: Path) -> None:
    command = runs.command(str(card), whole := tmp_path / "whole", DPO)
    runs.finish(command)
    for step, line in enumerate(runs.lines(whole, "metrics.jsonl"), 1):
        assert line["solver/grad_norm"] > 0 and line["solver/skipped"] == 0 and "evaluator/loss" not in line
        groups: dict[str, list[dict[str, Any]]] = {}
        for report in episodes_of(whole, "solver"):
            if report["step"] == step:
                groups.setdefault(report["group"], []).append(report)
        assert len(groups) == 2
        for group in groups.values():
            rewards = [report["reward"] for report in group]
            pair = sorted(report["reward"] for report in group if report["trained"])
            assert len(group) == 4 and pair == [min(rewards), max(rewards)] and pair[0] < pair[1]
    # before its first step the policy is the reference: m = 0 and L = log 2
    first = runs.lines(whole, "metrics.jsonl")[0]
    assert first["solver/loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert first["solver/implicit_margin"] == pytest.approx(0.0, abs=1e-4)
    before, after = (runs.arrays(whole, step) for step in (1, 2))
    params = [name for name in after if name.startswith("solver/params")]
    assert params and any((before[name] != after[name]).any() for name in params)
    reference = {
        name.replace("solver/", "solver/params/"): array for name, array in runs.reference_arrays(whole).items()
    }
    assert sorted(reference) == sorted(params)
    assert any((before[name].astype(array.dtype) != array).any() for name, array in reference.items())

    again = runs.command(str(card), run := tmp_path / "run", DPO)
    killed(again, "update 2")
    assert runs.saved(run) == [1]
    runs.finish(again)
    runs.same(whole, run)


def test_a_run_whose_harness_endpoint_is_down_uses_the_cards_harness(card: Path, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        outside = ('score.harness.driver="endpoint"', f'score.harness.endpoint={{url="{url}", model="m", retries=0}}')
        said = runs.end(runs.start(runs.command(str(card), run := tmp_path / "run", outside)))
    told = [line for line in said.splitlines() if "meta-harness" in line]
    assert [line.partition(" the judge")[0] for line in told[1:]] == [
        f"step {step}: no new meta-harness: no reply:" for step in (1, 2)
    ]
    assert told[0].startswith(f"the judge at {url} cannot be reached (")
    assert told[0].endswith("; the run starts with the meta-harness of the card.")
    assert [line["harness/invalid"] for line in runs.lines(run, "metrics.jsonl")] == [2.0, 3.0]
    assert {json.dumps(episode["text"]["value"]) for episode in episodes_of(run, "harness")} == {
        json.dumps(runs.memory(run, 2)["game"]["harness"]["value"])
    }
    page = write_report(run).read_text(encoding="utf-8")
    assert page.count("invalid, the one before stays: ") == 3 and "Signs of collapse" in page
