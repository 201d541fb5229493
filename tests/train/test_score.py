"""SCORE through the whole program: two updates a step, a harness that changes, a run that resumes to the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.train import runs

pytestmark = pytest.mark.slow

# The Atlas base speaks no SCORE: here any text is a rubric, report or assessment, by a number that its bytes give.
GAME = """
import zlib
from scope_jax.systems import score
globals().update({name: value for name, value in vars(score).items() if not name.startswith("__")})
from scope_jax.systems.score import rules, solver
from scope_jax.systems.score.records import Assessment, Rubric

def share(text):
    return zlib.crc32(text.encode()) % 100

def rubric_of(text, harness, wishes=None):
    if share(text) >= 90:
        return None, "no_dimensions"
    others = [name for name in harness.pool if name != harness.base][: harness.dimension_constraints.k - 1]
    return Rubric(harness.base, {name: harness.dimension_constraints.weight_max for name in others}), ""

def assessments_of(text, count, rubric, max_score):
    points = {name: share(text + name) / 10 for name in rubric.dimensions}
    return tuple(Assessment(points, "checked", "nothing", {"supported": 1, "unsupported": 0, "unknown": 0})
                 for _ in range(count))

rules.rubric_of = rubric_of
rules.assessments_of = assessments_of
solver.report_of = lambda completion: completion.turns[-1].text or None
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
prefill_buckets = [128, 512]
prefill_batch = 8
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
}
KEPT = ("factuality", "insight", "coherence", "complexity", "diversity")
LEFT_OUT = ("citation_effectiveness", "completeness", "fairness", "contradiction_handling", "uncertainty_calibration")


@pytest.fixture
def card(tmp_path: Path) -> Path:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    for name, text in PROMPTS.items():
        (prompts / f"{name}.txt").write_text(text)
    rows = [{"question": f"Which river lies in {town}?"} for town in ("Paris", "Rome", "Cairo")]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "game.py").write_text(GAME)
    texts = dict.fromkeys(KEPT, "x") | dict.fromkeys(LEFT_OUT, "")
    dimensions = "\n".join(f'{name} = "{text}"' for name, text in texts.items())
    path = tmp_path / "card.toml"
    path.write_text(
        CARD.format(
            game=tmp_path / "game.py", queries=tmp_path / "queries.jsonl", prompts=prompts, dimensions=dimensions
        )
    )
    return path


def test_a_run_trains_both_roles_in_order_and_resumes_to_the_same_bits(card: Path, tmp_path: Path) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    command = runs.command(str(card), whole, ())
    runs.finish(command)
    metrics = runs.lines(whole, "metrics.jsonl")
    assert [record["step"] for record in metrics] == [1, 2]
    for record in metrics:
        assert record["solver/grad_norm"] > 0 and record["evaluator/grad_norm"] > 0
        assert record["solver/skipped"] == record["evaluator/skipped"] == 0 and record["solver/assessed"] == 1.0
    assert [record["harness/dimensions"] for record in metrics] == [4.0, 5.0]  # by rules
    first, second = (runs.memory(whole, step) for step in (1, 2))
    rewards = [e["reward"] for e in runs.lines(whole, "episodes.jsonl") if e["role"] == "evaluator"]
    assert first["baselines"]["actor/evaluator"] == pytest.approx(0.3 * rewards[0])
    assert second["baselines"]["actor/evaluator"] == pytest.approx(0.21 * rewards[0] + 0.3 * rewards[1])
    assert second["game"]["harness"]["refreshed"] == 2 and second["game"]["scheduler"]["step"] == 2
    harnesses = [e["text"]["harness"] for e in runs.lines(whole, "episodes.jsonl") if e["role"] == "harness"]
    assert len(harnesses) == 4 and harnesses[-1] == second["game"]["harness"]["value"]

    # as if it had been killed in the second step
    shutil.copytree(whole, again)
    shutil.rmtree(runs.saved_at(again, 2))
    assert runs.saved(again) == [1]
    runs.finish(runs.command(str(card), again, ()))
    runs.same(whole, again)
