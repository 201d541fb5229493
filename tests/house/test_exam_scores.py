"""Scores of exams by hand: means over questions, standard errors, pass@k, further measures of answers."""

from typing import Any

import pytest

from scope_jax.config import CardError, parse_config
from scope_jax.evaluate import _compare, means, scores
from tests.systems import harness


def record(sample: int, **measures: float) -> dict[str, Any]:
    return {"sample": sample, "measures": measures, "counts": {}, "prediction": "4"}


def test_samples_of_a_question_are_one_value():
    records = [record(0, accuracy=1.0), record(1, accuracy=0.0), record(0, accuracy=1.0), record(1, accuracy=1.0)]
    found = means(records)
    assert found["accuracy"] == 0.75  # questions: 0.5 and 1
    assert found["accuracy_se"] == pytest.approx(0.25, abs=1e-12)  # deviation 0.5/sqrt(2), over sqrt(2)
    assert found["accuracy_pass@2"] == 1.0
    assert set(found) == {"accuracy", "accuracy_se", "accuracy_pass@2"}


def test_pass_at_k_is_unbiased_and_only_of_marks():
    marks = [1.0, 0.0, 0.0, 0.0]
    found = means([record(place, accuracy=mark, searches=mark) for place, mark in enumerate(marks)])
    assert found["accuracy_pass@2"] == pytest.approx(0.5) and found["accuracy_pass@4"] == 1.0
    assert "searches_pass@2" not in found and "accuracy_se" not in found  # one question has no error of its mean


def test_a_record_that_lacks_a_measure_takes_no_part():
    records = [record(0, score=1.0), record(1), record(0), record(1), record(0, score=0.0), record(1, score=1.0)]
    assert means(records)["score"] == 0.75
    assert scores("eval", "held", records)["eval/held/score"] == 0.75


def test_measures_of_answers_beside_the_games_own():
    records: list[dict[str, Any]] = [
        record(0, accuracy=1.0) | {"prediction": said} for said in ("the answer 4.0", "(B)", None)
    ]
    rows = [{"answers": ["4"]}, {"answers": ["B"]}, {"answers": ["4"]}]
    _compare(records, rows, ["cover-exact-match", "f1", "numeric", "choice", "exact-match"])
    assert records[0]["measures"] == {
        "accuracy": 1.0,
        "cover-exact-match": 0.0,
        "f1": 0.0,
        "numeric": 1.0,
        "choice": 0.0,
        "exact-match": 0.0,
    }
    assert records[1]["measures"]["choice"] == records[1]["measures"]["exact-match"] == 1.0
    assert set(records[2]["measures"].values()) == {1.0, 0.0} and records[2]["measures"]["numeric"] == 0.0


def exam(system: str = "ssp", **changes: Any) -> dict[str, Any]:
    table: dict[str, Any] = harness.card().model_dump(mode="json") | {"system": system}
    table["evaluate"] |= {"sets": [{"name": "held", "path": "held.jsonl"} | changes]}
    return table


def test_several_samples_need_a_temperature():
    with pytest.raises(CardError, match="4 samples at temperature 0"):
        parse_config(exam(samples=4), "card.toml")
    cfg = parse_config(exam(samples=4, temperature=0.6), "card.toml")
    assert cfg.evaluate.temperature_of(cfg.evaluate.sets[0]) == 0.6


def test_scope_has_no_right_answers_to_compare_with():
    with pytest.raises(CardError, match="SCOPE's sets have rubrics"):
        parse_config(exam("scope", measures=["f1"]), "card.toml")
