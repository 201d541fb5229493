"""[[train.watch]]: when a rule ends a run, what the run saves, and that a resumed run continues the count."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scope_jax import train
from scope_jax.config import CardError
from scope_jax.games import GAMES, load_card, ssp
from scope_jax.play.step import Played, Step
from scope_jax.report.progress import Progress
from scope_jax.run.watch import RunEnd, Watch, watch_of
from scope_jax.run.world import StepTools
from tests.train import runs

CARD = runs.ROOT / "configs" / "ssp" / "atlas.toml"
ENTROPY = 'train.watch=[{metric="solver/entropy", below=0.05, steps=2}]'
# below the bound in steps 2, 4, 5 (not finite) and from 7 on
VALUES = [0.9, 0.04, 0.05, 0.03, math.nan, 0.06, 0.01, 0.01, 0.01]


IDLE = {"loss": 0.0, "sequences": 8.0, "idle_sequences": 8.0}


def watch(text: str, records: list[dict[str, Any]]) -> Watch:
    return watch_of(load_card(CARD, [f"train.watch={text}"]), records)


def counts(text: str, values: list[Any]) -> list[int]:
    """The rule's count after each value of x/y; "" is a step without one."""
    records = [
        {"step": i, "time/play": 1.0} | ({} if value == "" else {"x/y": value}) for i, value in enumerate(values)
    ]
    return [watch(text, records[: end + 1]).counts[0] for end in range(len(values))]


def test_consecutive_values_are_counted() -> None:
    above, below = '[{metric="x/y", above=2.0, steps=3}]', '[{metric="x/y", below=0.0}]'
    assert counts(above, [3.0, 2.0, 2.1, 5.0, "", None, 1.0]) == [1, 0, 1, 2, 2, 3, 0]
    assert counts(above, [math.inf, math.nan, -math.inf]) == [1, 2, 3]
    assert counts(below, [0.0, -0.1, 1]) == [0, 1, 0]


def test_the_reason_names_metric_bound_and_steps() -> None:
    rules = '[{metric="a/b", below=0.05, steps=2}, {metric="c", above=1e3}]'
    low = [{"a/b": 0.01, "c": 5.0}] * 2
    assert watch(rules, low[:1]).reason is None
    assert watch(rules, low).reason == (
        "stopped early by [[train.watch]]: a/b was below 0.05 (or not finite) in 2 consecutive steps."
    )
    assert "c was above 1000 (or not finite) in 1 step." in (watch(rules, [{"a/b": 1.0, "c": 1001.0}]).reason or "")


def test_the_first_evaluation_ends_no_run_but_its_metric_names_are_valid() -> None:
    rules, first = '[{metric="eval/q/accuracy", below=0.5}]', {"step": 0, "eval/q/accuracy": 0.1, "time/evaluate": 3.0}
    found = watch(rules, [first])
    assert found.counts == (0,) and "eval/q/accuracy" in found.seen
    assert found.after({"time/play": 1.0, "eval/q/accuracy": 0.1}).reason is not None


def test_an_end_knows_why_a_run_ends() -> None:
    going = RunEnd(watch('[{metric="a", below=0.5, steps=2}]', [{"a": 0.1}]), complete=False)
    assert not going and not going.over
    asked = going.after(False, {"a": 1.0}, 15)
    assert asked and not asked.over and asked.signal == 15, "the process ends, not the run"
    assert going.after(True, {"a": 1.0}).over and going.after(True, {"a": 1.0}).watch.reason is None
    ruled = going.after(False, {"a": 0.2})
    assert ruled and ruled.over and "a was below 0.5" in (ruled.watch.reason or "")
    assert not going.after(False, {"b": 0.2}), "a step without the metric ends nothing"


def test_a_rule_has_one_bound() -> None:
    for text in ('[{metric="a"}]', '[{metric="a", below=0.0, above=1.0}]'):
        with pytest.raises(CardError, match="the watch of 'a' needs one bound; give either below or above"):
            watch(text, [])


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps that train nothing, with the entropies of VALUES; the list holds the steps that were played."""
    steps: list[int] = []

    def play(step: Step[Any]) -> Played:
        if isinstance(step.tools, StepTools):  # a start looks at the first prompts of step 0
            steps.append(step.number + 1)
        return Played([], [], {"solver/entropy": VALUES[step.number], "solver/loss": 0.0, "proposer/loss": 0.0})

    monkeypatch.setitem(GAMES, "ssp", replace(GAMES["ssp"], play=play))
    return steps


def run(folder: Path, *sets: str) -> dict[str, Any]:
    fixed = ("train.steps=9", "train.save_every=3", "train.keep=9", "evaluate.sets=[]")
    with Progress(Console(quiet=True)) as progress:
        return train.train(load_card(CARD, [*fixed, *sets]), folder, progress)


def test_a_run_stops_with_a_checkpoint_and_resumes_with_the_same_counts(tmp_path: Path, played: list[int]) -> None:
    results = run(tmp_path / "run", ENTROPY)
    assert results["steps"] == 5 and played == [1, 2, 3, 4, 5]
    assert "solver/entropy was below 0.05 (or not finite) in 2 consecutive steps" in results["stopped"]
    assert runs.saved(tmp_path / "run") == [3, 5]
    # the same command again does nothing
    assert run(tmp_path / "run", ENTROPY)["stopped"] == results["stopped"] and len(played) == 5
    # stopped between the two low values and resumed: the count continues
    assert "stopped" not in run(tmp_path / "cut", ENTROPY, "train.steps=4")
    assert run(tmp_path / "cut", ENTROPY)["stopped"] == results["stopped"]
    assert runs.lines(tmp_path / "cut", "metrics.jsonl") == runs.lines(tmp_path / "run", "metrics.jsonl")
    # a rule may change, as it does not affect what is computed
    assert run(tmp_path / "run", ENTROPY.replace("steps=2", "steps=3"))["steps"] == 9 and played[-4:] == [6, 7, 8, 9]


@pytest.mark.slow
def test_a_metric_without_a_value_so_far_ends_no_run(tmp_path: Path, played: list[int]) -> None:
    """`solver/reward` is a mean over valid questions: a first step may have none."""
    rule = 'train.watch=[{metric="solver/reward", below=0.05, steps=2}]'
    assert run(tmp_path / "run", rule)["steps"] == 9 and len(played) == 9


def test_the_user_is_told_of_a_metric_that_no_step_has_had() -> None:
    found = watch('[{metric="own/number", below=0.1}, {metric="own/other", below=0.1}]', [])
    (update,) = (one for one in ssp.GAME.updates(load_card(CARD)) if one.name == "solver")
    assert found.missing([update]) is None
    found = found.after({"solver/loss": 0.0, "own/other": 1.0})
    assert found.missing([update]) == "[[train.watch]]: no step has had own/number so far."
    near = found.after({"own/numbers": 1.0}).missing([update])
    assert near == "[[train.watch]]: no step has had own/number (similar: own/numbers) so far."
    assert found.reason is None and found.after({"own/number": 1.0}).missing([update]) is None
