"""Suites from published rows to a table: real rows, converted, answered by a tiny model in the engine, and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.config.suites import load_suite
from scope_jax.grading.measures import cover_exact_match
from tests.judge.endpoint import chat, endpoint

# exam: the file with real rows of it
REAL = {
    **{name: f"qa/{name}.jsonl" for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique")},
    **{name: f"qa/{name}.jsonl" for name in ("bamboogle", "simpleqa", "frames", "math500", "amc23")},
    "aime24": "qa/aime.jsonl",
    "aime25": "qa/aime.jsonl",
    "mmlu-pro": "qa/mmlu_pro.jsonl",
    "drb-race": "rubric_qa/deep_research_bench.jsonl",
    "sqa-cs-v2": "rubric_qa/scholarqa_cs.jsonl",
    "healthbench": "rubric_qa/healthbench.jsonl",
}
# the same files under our own names: rows that need no conversion
READY = {"gsm8k": "qa/gsm8k.jsonl", "gpqa-diamond": "qa/gpqa_diamond.jsonl.gz"}
OPEN = ["drb-race", "sqa-cs-v2", "healthbench"]
MODEL = Path("assets/atlas/ssp/base")
ENDING = Path("assets/atlas/spice/base")  # ends most of its replies within the length
SMALL = ("rollout.slots=4", "rollout.max_length=1024", "rollout.decode_steps=16")


def command(*words: object) -> tuple[str, dict[str, Any]]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.stderr, json.loads(result.stdout.splitlines()[-1])


def judge(number: int, body: dict[str, Any]) -> tuple[int, Any]:
    """Answers every kind of request of a judge."""
    text = body["messages"][-1]["content"]
    if "a single word: Correct or Wrong" in text:
        return chat("Wrong")
    return chat("<think>x</think><score>1</score>")


def prepared(shared_data: Path, folder: Path) -> list[str]:
    """The rows of all suites with real ones; the number of rows is that of the published file."""
    for name, file in REAL.items():
        _, made = command("data", name, folder / f"{name}.jsonl", "--source", shared_data / file, "--json")
        assert made["refused"] == made["other"] == 0 and made["rows"] >= 28
    for name, file in READY.items():
        if file.endswith(".gz"):
            import gzip

            (folder / f"{name}.jsonl").write_bytes(gzip.decompress((shared_data / file).read_bytes()))
        else:
            (folder / f"{name}.jsonl").write_bytes((shared_data / file).read_bytes())
    documents = {row["id"]: row for row in _rows(shared_data / "longdoc/docs.jsonl")}
    for name, file in (("musique-long", "leval_nq"), ("longbench-v2", "leval_quality")):
        made = [row | {"context": documents[row["doc_id"]]["text"]} for row in _rows(shared_data / f"qa/{file}.jsonl")]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, made)), encoding="utf-8")
    return [*REAL, *READY, "musique-long", "longbench-v2"]


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def evaluated(model: Path, names: list[str], folder: Path) -> tuple[dict[str, float], list[dict[str, Any]], list[Any]]:
    """(metrics, records, requests to judges) of two rows of each suite."""
    small = [word for override in SMALL for word in ("--set", override)]
    exams = [word for name in names for word in ("--exam", name)]
    file = folder / f"{model.parent.name}_records.jsonl"
    with endpoint(judge) as (url, asked):
        grader = f'{{temperature=1.0, max_tokens=9, endpoint={{url="{url}", model="g"}}}}'
        _, found = command(
            *("eval", model, *exams, "--data", folder, "--limit", 2, "--json", "--records", file, *small),
            *("--set", f'evaluate.judge={{url="{url}", model="j"}}', "--set", f"evaluate.grader={grader}"),
            *("--set", 'model.compute_dtype="float32"'),
        )
    assert found["step"] is None
    return found["metrics"], _rows(file), asked


def requests_due(record: dict[str, Any]) -> int:
    """How many requests a record must have led to, by the card of its suite and the model's reply.

    An open answer is graded by one request for each criterion; the reply is the answer, unless it was cut, which is no
    answer (docs/evaluation.md). The measure `judge`, and the accuracy of documents, ask once about an answer, which
    stands between tags or after "Answer:"; the latter unless it contains a right one. Nothing is sent about a row
    without an answer. No two requests are alike, since each quotes its question, and `judge` replies so that none is
    repeated.
    """
    suite, answer = load_suite(record["set"]), record["prediction"]
    if suite.form == "open":
        reply = "".join(turn["text"] for turn in record["text"]["turns"])
        ended = bool(reply.strip()) and "cut_off" not in record["counts"]
        assert (answer is not None) == ended
        return len(record["rubric"]) if ended else 0
    if suite.form == "document" and "accuracy" in suite.measures:
        return int(bool(answer) and not cover_exact_match(answer, record["answers"]))
    return int("judge" in suite.measures and bool(answer))


@pytest.mark.slow
def test_every_suite_with_real_rows_from_file_to_table(shared_data: Path, tmp_path: Path) -> None:
    """SSP's base answers in tags, but hardly ever ends a reply; the open suites are answered by SPICE's, which does."""
    names = prepared(shared_data, tmp_path)
    rest = [name for name in names if name not in OPEN]
    for model, some, judged in ((MODEL, rest, {"frames"}), (ENDING, OPEN, set(OPEN))):
        metrics, records, asked = evaluated(model, some, tmp_path)
        assert {name: metrics[f"eval/{name}/questions"] for name in some} == dict.fromkeys(some, 2.0)
        assert all(any(key.startswith(f"eval/{name}/") and key.endswith("_se") for key in metrics) for name in some)
        due = {name: sum(requests_due(record) for record in records if record["set"] == name) for name in some}
        assert judged <= {name for name, number in due.items() if number}
        assert {name: metrics.get(f"eval/{name}/judge_requests", 0) for name in some} == due
        assert len(asked) == sum(due.values())
        assert {request["model"] for request in asked} == {"g" if some == OPEN else "j"}
    small = [word for override in SMALL for word in ("--set", override)]
    words = ("--paper", "ssp", "--measure", "exact-match", "--data", tmp_path, "--limit", 1, "--json")
    shown, tabled = command("eval", MODEL, *words, *small)
    (table,) = tabled["tables"]
    assert table["columns"][-1] == "Avg" and table["ours"][-1]["mean"] == pytest.approx(
        sum(cell["mean"] for cell in table["ours"][:-1]) / 7
    )
    assert "Qwen2.5-7B-Instruct + SSP" in shown


@pytest.mark.slow
def test_a_suite_with_the_games_own_prompt_and_searches(tmp_path: Path) -> None:
    """With SSP's card, NQ is answered with its solver's turns: `searches` is measured, unlike without the card."""
    rows = [{"question": "What is the capital of Norway?", "answers": ["Oslo"]}]
    (tmp_path / "nq.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("eval", MODEL, "--exam", "nq", "--data", tmp_path, "--json", "--set", "rollout.slots=4")
    _, played = command(*words, "--card", "configs/ssp/atlas.toml")
    assert "eval/nq/searches" in played["metrics"] and "eval/nq/exact-match" in played["metrics"]
