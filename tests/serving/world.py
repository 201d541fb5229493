"""Atlas's SSP base behind a server in a thread, for tests that talk to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scope_jax.rollouts.local import LocalRollouts
from scope_jax.serving.assemble import Served, served
from scope_jax.serving.server import run_model
from scope_jax.web.connections import bound

ROOT = Path(__file__).parents[2]
BASE = ROOT / "assets" / "atlas" / "ssp" / "base"
JSON = {"Content-Type": "application/json"}
SETTINGS = (
    "model.compute_dtype=float32",
    "rollout.slots=8",
    "rollout.max_length=128",
    "rollout.decode_steps=8",
    "retrieval.corpus=" + str(ROOT / "assets" / "atlas" / "corpus.jsonl"),
    "retrieval.dim=256",
    "retrieval.top_k=1",
    "retrieval.max_tokens=40",
    "serve.queue=24",
    "serve.max_tokens=100",
    "serve.max_samples=8",
    "serve.max_body=20000",
)


def questions(count: int) -> list[str]:
    """Prompts of Atlas's solver."""
    lines = (ROOT / "assets" / "atlas" / "questions_train.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [json.loads(lines[number % len(lines)])["question"] for number in range(count)]
    return [f"Search and answer.\nQuestion: {question}" for question in asked]


@contextmanager
def atlas() -> Iterator[Served]:
    """The model, which may search."""
    with served(BASE, None, SETTINGS, policy=None, search=True, name="atlas", grace=5.0, tell=print) as model:
        yield model


@contextmanager
def serving(
    model: Served, *, key: str | None = None, grpc: bool = False, grace: float = 5.0, hosts: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Addresses by kind, http and grpc, of the model on free ports; `end` ends the server. hosts: names of it."""
    told: dict[str, Any] = {}
    ready, ended = threading.Event(), threading.Event()
    told["end"] = ended.set
    sock = bound("127.0.0.1", 0)

    def tell(sentence: str) -> None:
        kind = "grpc" if sentence.startswith("JetStream") else "http"
        told[kind] = sentence.split()[-1]
        if kind == "http":
            ready.set()

    def run() -> None:
        place = ("127.0.0.1", 0) if grpc else None
        run_model(model, sock, key=key, grpc=place, grace=grace, tell=tell, hosts=hosts, ended=ended)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    try:
        yield told
    finally:
        ended.set()
        thread.join(30)
        assert not thread.is_alive()


def offline(model: Served) -> LocalRollouts:
    """The same engine, a batch at a time."""
    rollouts = LocalRollouts(model.rollouts.engine, model.tokenizer, seed=0, threads=1, ahead=False)
    rollouts.use(model.rollouts.params)
    return rollouts


def wait_until_idle(model: Served) -> None:
    async def idle() -> None:
        while model.rollouts.running or model.rollouts.waiting:
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(idle(), 60))
