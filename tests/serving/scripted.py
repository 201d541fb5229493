"""An engine whose replies are given: for what a served model writes, and random weights do not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.rollouts import types
from scope_jax.rollouts.online import Done, Listener, OnlineRollouts, Sampled
from scope_jax.rollouts.types import Completion, Request
from scope_jax.serving.assemble import Served

EMPTY = np.zeros(0, np.int32)
ENDED = Completion((types.Row(EMPTY, EMPTY, EMPTY, EMPTY),), (), "eos")
Says = Callable[[str], str]  # the reply to a prompt, given as text


class Scripted(OnlineRollouts):
    """Without a loop of its own: replies are `says`, told a few tokens at a time; "…" at the end cuts them off."""

    def __init__(self, tokenizer: Tokenizer, says: Says, room: int = 4096, pace: int = 3) -> None:
        self._tokenizer, self._says, self._pace = tokenizer, says, pace
        config = SimpleNamespace(max_length=room, slots=8)
        self.engine: Any = SimpleNamespace(config=config, model=SimpleNamespace(vocab_size=tokenizer.vocab_size))
        self.failure = None
        self.prompts: list[list[int]] = []

    @property
    def running(self) -> int:
        return 0

    @property
    def waiting(self) -> int:
        return 0

    def compile(self, *, extends: bool) -> None:
        """There are no programs."""

    def submit(self, requests: Sequence[Request], listeners: Sequence[Listener]) -> list[Any]:
        for request, listener in zip(requests, listeners, strict=True):
            self.prompts.append([int(id) for id in request.prompt_ids])
            threading.Thread(target=self._tell, args=(request, listener), daemon=True).start()
        return [SimpleNamespace(cancel=lambda: None) for _ in requests]

    def _tell(self, request: Request, listener: Listener) -> None:
        text = self._says(self._tokenizer.decode(request.prompt_ids))
        cut = text.endswith("…")
        ids = [*self._tokenizer.encode(text.removesuffix("…")), *([] if cut else [self._tokenizer.eos_id])]
        for place in range(0, len(ids), self._pace):
            some = ids[place : place + self._pace]
            listener(Sampled(tuple(some), (0.0,) * len(some)))
        listener(Done(replace(ENDED, finish_reason="length" if cut else "eos")))


def scripted(model: Served, tokenizer: Tokenizer, dialect: str, says: Says, **options: Any) -> Served:
    """The model with another tokenizer and dialect, and given replies."""
    section = model.cfg.model.model_copy(update={"dialect": dialect})
    serve = model.cfg.serve.model_copy(update={"max_body": 1 << 20})
    cfg = model.cfg.model_copy(update={"model": section, "serve": serve})
    rollouts: Any = Scripted(tokenizer, says, **options)
    return replace(model, cfg=cfg, tokenizer=tokenizer, rollouts=rollouts)
