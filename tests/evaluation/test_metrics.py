"""Metrics of sets computed by hand: means over questions, standard errors, pass@k, further measures."""

import math
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

import pytest

from scope_jax.config import CardError, SamplingSection
from scope_jax.evaluation.metrics import means, pass_at_k, set_metrics, standard_error
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
    assert set_metrics("eval", "held", records)["eval/held/score"] == 0.75


def exam(system: str = "ssp", **changes: Any) -> dict[str, Any]:
    table: dict[str, Any] = harness.card().model_dump(mode="json") | {"system": system}
    table["evaluate"] |= {"sets": [{"name": "held", "path": "held.jsonl"} | changes]}
    return table


def test_several_samples_need_a_temperature():
    with pytest.raises(CardError, match="4 samples at temperature 0"):
        parse_config(exam(samples=4), "card.toml")
    cfg = parse_config(exam(samples=4, temperature=0.6), "card.toml")
    assert cfg.evaluate.sampling_of(cfg.evaluate.sets[0], SamplingSection()).temperature == 0.6


@pytest.mark.parametrize(
    ("of_set", "of_card", "limit"), [(None, None, 64), (None, 100, 100), (32, None, 32), (32, 100, 32)]
)
def test_an_exam_has_the_limit_of_its_role_unless_set_or_card_has_one(
    of_set: int | None, of_card: int | None, limit: int
) -> None:
    table = exam(max_tokens=of_set)
    table["evaluate"] |= {"max_tokens": of_card}
    card = parse_config(table, "card.toml").evaluate
    sampling = card.sampling_of(card.sets[0], SamplingSection(max_tokens=64, temperature=0.7))
    assert (sampling.max_tokens, sampling.temperature) == (limit, 0.0)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    for samples in range(1, 7):
        for right in range(samples + 1):
            marks = [True] * right + [False] * (samples - right)
            for k in range(1, samples + 1):
                subsets = list(combinations(marks, k))
                share = sum(any(subset) for subset in subsets) / len(subsets)
                assert pass_at_k(samples, right, k) == pytest.approx(share, abs=1e-12)
    with pytest.raises(ValueError, match="pass@3 of 2 samples"):
        pass_at_k(2, 1, 3)


def test_standard_error_of_a_mean():
    values = [0.0, 1.0, 1.0, 0.5]
    assert standard_error(values) == pytest.approx(stdev(values) / math.sqrt(4), abs=1e-15)
    assert fmean(values) == 0.625
    assert standard_error([1.0]) is None
    assert standard_error([1.0, 1.0]) == 0.0
