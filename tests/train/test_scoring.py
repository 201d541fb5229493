"""`tools.score`: log-probs of given tokens under policies, the base, folders and endpoints, each row by itself."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jax
import numpy as np
import pytest

from scope_jax.config import LossCard
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.learner import batching
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.tools import BASE
from scope_jax.run.assemble import Trainer, assemble
from scope_jax.text.messages import Messages
from tests.shallow import shallow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "assets" / "atlas" / "spice" / "base"
CARD = (
    "evaluate.sets=[]",
    "rollout.max_length=128",
    "rollout.slots=4",
    "learner.buckets=[64, 128]",
    "learner.micro_batch_rows=2",
)


def built(tmp_path: Path, *sets: str) -> tuple[Trainer, dict]:
    trainer = assemble(load_card(ROOT / "configs" / "spice" / "atlas.toml", [*CARD, *sets]), tmp_path)
    states, _, _ = trainer.start(None)
    return trainer, states


def noisy(states: dict, scale: float) -> dict:
    """The states after some training: their weights are moved at random."""
    leaves, tree = jax.tree.flatten(states["actor"].params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    moved = [leaf + scale * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return {"actor": states["actor"].replace(params=jax.tree.unflatten(tree, moved))}


def random_rows(count: int, vocab: int, longest: int = 100, seed: int = 0) -> list[Datum]:
    rng = np.random.default_rng(seed)
    rows = []
    for length in rng.integers(4, longest, count):
        sampled = rng.random(length) < 0.4
        sampled[0], sampled[-1] = False, True
        rows.append(Datum(rng.integers(0, vocab, length).astype(np.int32), sampled, np.zeros(length, np.float32)))
    return rows


def of_learner(trainer: Trainer, states: dict, rows: list[Datum], *, reference: bool) -> list[np.ndarray]:
    """The learner's own scores of the rows, packed together."""
    episodes = [Episode("r", "actor", "g", (row,), 0.0, advantage=1.0) for row in rows]
    (batch,) = trainer.learner.pack(episodes, LossCard(kl="k3"))
    scores = trainer.learner.score(states["actor"], batch, policy=not reference, reference=reference)
    values_MN = scores.ref_MN if reference else scores.old_MN
    assert values_MN is not None
    values = batching.unpack(batch, values_MN)
    return np.split(values, np.cumsum([row.sampled_T.sum() for row in rows])[:-1])


ADAPTER = ('model.adapter={rank=4, alpha=8.0, base_dtype="float32"}',)


@pytest.mark.parametrize("adapter", [(), pytest.param(ADAPTER, marks=pytest.mark.slow)], ids=str)
def test_scores_are_the_learner_s_and_of_each_row_alone(tmp_path, adapter):
    base = shallow("spice")
    models = (f'model.checkpoint="{base}"', f'teachers.first.checkpoint="{base}"')
    trainer, states = built(tmp_path, *adapter, "spice.loss.kl=k3", *models)
    states, world = noisy(states, 0.02), trainer.world
    world.sampler.publish(states)
    tools, rows = world.tools(0), random_rows(9, world.model.vocab_size)
    found = {by: tools.score(by, rows) for by in ("actor", BASE, "first")}
    for by, reference in (("actor", False), (BASE, True), ("first", True)):
        for ours, theirs in zip(found[by], of_learner(trainer, states, rows, reference=reference), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert max(np.abs(a - b).max() for a, b in zip(found["actor"], found[BASE], strict=True)) > 0.1
    for by, together in found.items():  # bits are those of a row by itself, and in another company
        for place in (0, 5):
            np.testing.assert_array_equal(tools.score(by, [rows[place]])[0], together[place])
        np.testing.assert_array_equal(tools.score(by, rows[::-1] + random_rows(30, 50, seed=1))[3], together[5])
    halved = tools.score("actor", rows, temperature=2.0)
    assert any(np.abs(a - b).max() > 0.01 for a, b in zip(halved, found["actor"], strict=True))
    world.sampler.use("actor")
    assert world.local.params is not None  # the engine goes on after a teacher


def test_another_prompt_rates_the_same_tokens(tmp_path):
    trainer, states = built(tmp_path)
    world = trainer.world
    world.sampler.publish(states)
    tools = world.tools(0)
    prompt = world.joiner.prompt(Messages("What is the capital?"))
    answer = world.tokenizer.encode(" the answer")
    sampled = np.array([False] * len(prompt) + [True] * len(answer))
    row = Datum(np.array([*prompt, *answer], np.int32), sampled, np.zeros(len(sampled), np.float32))
    hint = Messages("What is the capital? It is the answer.")
    (plain,), (hinted,) = tools.score("actor", [row]), tools.score("actor", [row], after=[hint])
    (same,), (by_ids,) = (tools.score("actor", [row], after=[each]) for each in (prompt, world.joiner.prompt(hint)))
    np.testing.assert_array_equal(same, plain)
    np.testing.assert_array_equal(by_ids, hinted)
    assert len(hinted) == len(answer) and np.abs(hinted - plain).max() > 1e-3
    assert row.with_teacher(hinted).teacher_T is not None


def test_what_cannot_be_rated_is_one_sentence(tmp_path):
    trainer, states = built(tmp_path)
    trainer.world.sampler.publish(states)
    tools = trainer.world.tools(0)
    (row,) = random_rows(1, 50)
    with pytest.raises(ValueError, match="there are no weights for the policy 'nobody'"):
        tools.score("nobody", [row])
    long = Datum(np.zeros(200, np.int32), np.arange(200) > 0, np.zeros(200, np.float32))
    with pytest.raises(UserError, match=r"has 200 tokens, more than the largest of learner\.buckets, 128"):
        tools.score("actor", [long])
    other = json.loads((FOLDER / "tokenizer.json").read_text())
    vocab = other["model"]["vocab"]
    names = sorted(vocab, key=vocab.get)[60:62]
    vocab[names[0]], vocab[names[1]] = vocab[names[1]], vocab[names[0]]
    copy = tmp_path / "other"
    copy.mkdir()
    for file in FOLDER.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "tokenizer.json").write_text(json.dumps(other))
    with pytest.raises(UserError, match=r"the teacher big in .* has another vocabulary than the policies \('"):
        built(tmp_path, f'teachers.big.checkpoint="{copy}"')
    with pytest.raises(UserError, match=r"\[teachers\.actor\] has the name of a policy"):
        built(tmp_path, f'teachers.actor.checkpoint="{FOLDER}"')
    for table, sentence in (
        ("{}", "either checkpoint"),
        ('{url="http://127.0.0.1:1"}', "go together"),
        ('{checkpoint="x", retries=3}', "retries is for a teacher with a url"),
    ):
        with pytest.raises(UserError, match=sentence):
            load_card(ROOT / "configs" / "spice" / "atlas.toml", [f"teachers.big={table}"])


class Endpoint:
    """Rates a prompt's token t with −t / 10, and shows texts by `decode`."""

    def __init__(self, decode, values=lambda count: [None, *(-place / 10 for place in range(1, count))]):
        self.asked: list[dict] = []

        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(body)
                ids = body["prompt"]
                rated = {"tokens": [*map(decode, ids), "x"], "token_logprobs": [*values(len(ids)), -1.0]}
                reply = json.dumps({"choices": [{"text": "", "logprobs": rated}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.sets = f'teachers.far={{url="http://127.0.0.1:{self.server.server_port}/v1", model="m", retries=0}}'

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_an_endpoint_rates_prompts_of_ids(tmp_path):
    tokenizer = Tokenizer.load(FOLDER)
    with Endpoint(lambda id: tokenizer.decode([id])) as endpoint:
        trainer, _ = built(tmp_path, endpoint.sets)
        tools, rows = trainer.world.tools(0), random_rows(5, 50)
        for row, values in zip(rows, tools.score("far", rows), strict=True):
            np.testing.assert_allclose(values, -np.flatnonzero(row.sampled_T) / 10, rtol=1e-6)
        asked = [body["prompt"] for body in endpoint.asked[1:]]  # after the probe
        assert sorted(asked) == sorted(row.ids_T.tolist() for row in rows)
        assert all(body["echo"] and body["logprobs"] == 0 for body in endpoint.asked)
        with pytest.raises(UserError, match=r"gives log-probs at temperature 1, but the game asks for 0\.7"):
            tools.score("far", rows, temperature=0.7)
    with Endpoint(str) as endpoint, pytest.raises(UserError, match="has another vocabulary than the policies: token"):
        built(tmp_path, endpoint.sets)
    with (
        Endpoint(str, lambda count: [None] * count) as endpoint,
        pytest.raises(UserError, match="must rate every token of a prompt of ids"),
    ):
        built(tmp_path, endpoint.sets)
