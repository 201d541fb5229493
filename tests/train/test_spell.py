"""SPELL through the whole program: a step draws until it is full and trains; a run killed inside a step resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train import runs

pytestmark = pytest.mark.slow

# This Atlas base was not trained on SPELL: any text counts as a question, answer or verdict, by a number computed from
# its bytes. If SPELL_WAITS_AT is set, the process waits at that point of drawing until it is killed.
GAME = """
import os, time, zlib
from pathlib import Path
from scope_jax.games import spell
from scope_jax.games.spell import roles, rules
from scope_jax.games.spell.state import Question

def share(text):
    return zlib.crc32(text.encode()) % 100

def question_of(text, task, tokens, limit):
    return (Question(text[:20] or "?", "x"), "") if share(text) < 80 else (None, "no_object")

rules.question_of = question_of
rules.matches = lambda task, response, conclusion, reference, reads, containment: share(response) < 40
rules.conclusion_of = lambda text: text[:20] or None
rules.verdict_of = lambda text: share(text) < 50

draw_contexts = roles.draw_contexts

def contexts(step, history, clusters, first):
    if first == int(os.environ.get("SPELL_WAITS_AT", "-1")):
        Path(os.environ["SPELL_WAITS_THERE"]).touch()
        time.sleep(600)
    return draw_contexts(step, history, clusters, first)

roles.draw_contexts = contexts
GAME = spell.GAME
"""
CARD = """
system = "{game}"
[model]
checkpoint = "assets/atlas/ssp/base"
compute_dtype = "float32"
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
clusters = "{clusters}"
[train]
steps = 2
save_every = 1
keep = 3
[spell]
prompts = "{prompts}"
groups = 3
clusters_per_round = 2
max_rounds = 12
documents = 1
[spell.tasks]
choice = 0.0
qa = 1.0
math = 1.0
[spell.questioner.sampling]
max_tokens = 8
[spell.responder]
samples = 4
[spell.responder.sampling]
max_tokens = 8
[spell.verifier]
samples = 4
[spell.verifier.sampling]
max_tokens = 8
"""
PROMPTS = {
    "questioner_qa": "Ask: {documents} {earlier}",
    "earlier_qa": "Not: {examples}",
    "responder_qa": "Read: {documents} Question: {question}",
    "questioner_math": "Ask: {documents} {earlier}",
    "earlier_math": "Not: {examples}",
    "responder_math": "Read: {documents} Question: {question}",
    "nothing": "nothing",
    "verifier": "Compare {problem} {answer} {reference}",
}


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    prompts = folder / "prompts"
    prompts.mkdir()
    for name, text in PROMPTS.items():
        (prompts / f"{name}.txt").write_text(text)
    documents = [json.loads(line) for line in (runs.ROOT / "assets/atlas/documents.jsonl").read_text().splitlines()]
    with (folder / "clusters.jsonl").open("w") as file:
        for first in range(0, 18, 3):
            own = [{**document, "text": document["text"][:80]} for document in documents[first : first + 3]]
            file.write(json.dumps({"id": f"{first}", "family": "qa", "documents": own}) + "\n")
    (folder / "game.py").write_text(GAME)
    path = folder / "card.toml"
    path.write_text(CARD.format(game=folder / "game.py", clusters=folder / "clusters.jsonl", prompts=prompts))
    return path


@pytest.fixture(scope="module")
def whole(card: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    runs.finish(runs.command(str(card), run, ()))
    return run


def test_a_step_draws_until_it_is_full_and_trains_all_roles_at_once(whole: Path) -> None:
    metrics = runs.lines(whole, "metrics.jsonl")
    assert [record["step"] for record in metrics] == [1, 2]
    assert all(record["groups/kept"] == 3.0 and record["groups/rounds"] >= 2.0 for record in metrics)
    for record in metrics:
        assert record["questioner+responder+verifier/grad_norm"] > 0
        assert record["questioner+responder+verifier/skipped"] == 0
    episodes = runs.lines(whole, "episodes.jsonl")
    assert {e["role"] for e in episodes if e["trained"]} == {"questioner", "responder", "verifier"}
    assert sum(e["trained"] for e in episodes if e["role"] == "responder") == 2 * 3 * 4
    game = runs.memory(whole, 2)["game"]
    assert game["position"] == 2 * sum(record["groups/rounds"] for record in metrics) and game["history"]
    first, last = runs.arrays(whole, 1), runs.arrays(whole, 2)
    assert any((first[name] != last[name]).any() for name in first if name.startswith("actor/params"))


def test_a_run_killed_while_a_step_draws_ends_with_the_same_bits(
    card: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = runs.memory(whole, 1)["game"]["position"]
    there, run = tmp_path / "there", tmp_path / "run"
    monkeypatch.setenv("SPELL_WAITS_AT", f"{drawn + 2}")  # the second round of the second step
    monkeypatch.setenv("SPELL_WAITS_THERE", str(there))
    runs.kill_when(runs.command(str(card), run, ()), there.exists)
    assert runs.saved(run) == [1] and runs.memory(run, 1)["game"]["position"] == drawn
    monkeypatch.delenv("SPELL_WAITS_AT")
    runs.finish(runs.command(str(card), run, ()))
    runs.same(whole, run)
