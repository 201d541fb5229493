"""Scores of exams computed by hand: means over questions, standard errors, pass@k, further measures."""

from typing import Any

import pytest

from scope_jax.config import CardError
from scope_jax.evaluate import means, scores
from scope_jax.games import parse_config
from tests.games import harness


def record(sample: int, **measures: float) -> dict[str, Any]:
    return {"sample": sample, "measures": measures, "counts": {}, "prediction": "4"}


def test_samples_of_a_question_are_averaged():
    records = [record(0, accuracy=1.0), record(1, accuracy=0.0), record(0, accuracy=1.0), record(1, accuracy=1.0)]
    found = means(records)
    assert found["accuracy"] == 0.75  # questions: 0.5 and 1
    assert found["accuracy_se"] == pytest.approx(0.25, abs=1e-12)  # deviation 0.5/sqrt(2), over sqrt(2)
    assert found["accuracy_pass@2"] == 1.0
    assert set(found) == {"accuracy", "accuracy_se", "accuracy_pass@2"}


def test_pass_at_k_is_unbiased_and_only_for_binary_measures():
    marks = [1.0, 0.0, 0.0, 0.0]
    found = means([record(place, accuracy=mark, searches=mark) for place, mark in enumerate(marks)])
    assert found["accuracy_pass@2"] == pytest.approx(0.5) and found["accuracy_pass@4"] == 1.0
    assert "searches_pass@2" not in found and "accuracy_se" not in found  # no standard error from a single question


def test_a_record_without_a_measure_is_left_out():
    records = [record(0, score=1.0), record(1), record(0), record(1), record(0, score=0.0), record(1, score=1.0)]
    assert means(records)["score"] == 0.75
    assert scores("eval", "held", records)["eval/held/score"] == 0.75


def exam(system: str = "ssp", **changes: Any) -> dict[str, Any]:
    table: dict[str, Any] = harness.card().model_dump(mode="json") | {"system": system}
    table["evaluate"] |= {"sets": [{"name": "held", "path": "held.jsonl"} | changes]}
    return table


def test_several_samples_need_a_temperature():
    with pytest.raises(CardError, match="4 samples at temperature 0"):
        parse_config(exam(samples=4), "card.toml")
    cfg = parse_config(exam(samples=4, temperature=0.6), "card.toml")
    assert cfg.evaluate.sampling_of(cfg.evaluate.sets[0]).temperature == 0.6
