"""A teacher behind an OpenAI-compatible endpoint that gives the log-probs of prompts: `/completions` with `echo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scope_jax.config import EndpointSection
from scope_jax.errors import UserError
from scope_jax.grading.judge_client import authorization
from scope_jax.learner.types import Datum
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.web.exchange import BadAddress, Exchange, HttpResponse, Trouble, Unanswered, shown

PROBED = 256  # ids of the vocabulary that are compared
Rated = tuple[list[Any], list[Any]]  # the texts and log-probs of a prompt's tokens


class TeacherClient:
    """Rates rows by requests, one for each row, sent concurrently, each with retries and increasing delays."""

    def __init__(
        self, name: str, card: EndpointSection, tokenizer: Tokenizer, tell: Callable[[str], None] | None
    ) -> None:
        self._card, self._tokenizer = card, tokenizer
        self._who = f"the teacher {name} at {shown(card.url)}"
        self._exchange = Exchange(
            card.url.rstrip("/") + "/completions",
            name=f"the teacher {name}",
            timeout=card.timeout,
            retries=card.retries,
            first_delay=card.retry_delay,
            headers=authorization(card, self._who),
            tell=tell,
        )

    def score(self, rows: Sequence[Datum]) -> list[np.ndarray]:
        """The log-probs of each row's sampled tokens. Raises UserError if the endpoint does not give them."""
        rated = self._ask([row.ids_T.tolist() for row in rows])
        return [np.array(values, np.float32)[row.sampled_T] for row, (_, values) in zip(rows, rated, strict=True)]

    def probe(self) -> None:
        """Raises UserError unless the endpoint answers, and shows the same text for the tokens of the chat template,
        and for ids from the whole vocabulary. Special tokens may have no text there."""
        ids = [id for id in range(self._tokenizer.vocab_size) if self._readable(id)]
        chosen = [ids[place] for place in np.unique(np.linspace(0, len(ids) - 1, PROBED).astype(int))]
        marks = sorted(set(self._tokenizer.marks.values()) - {*chosen})
        ((texts, _),) = self._ask([chosen + marks])
        for id, text in zip(chosen + marks, texts, strict=False):
            hidden = text == "" and id in self._tokenizer.special_ids
            if not hidden and (not isinstance(text, str) or text.strip() != self._tokenizer.decode([id]).strip()):
                raise UserError(
                    f"{self._who} has another vocabulary than the policies: token {id} is {str(text)[:40]!r} there and "
                    f"{self._tokenizer.decode([id])[:40]!r} here; choose a model with the same."
                )

    def _readable(self, id: int) -> bool:
        text = "" if id in self._tokenizer.special_ids else self._tokenizer.decode([id])
        return bool(text.strip()) and "\ufffd" not in text

    def _ask(self, prompts: Sequence[list[int]]) -> list[Rated]:
        fields = {"model": self._card.model, "max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": 0}
        bodies = [{**fields, "prompt": ids, **self._card.extra_body} for ids in prompts]
        try:
            replies = self._exchange.post(bodies, self._read, self._card.concurrency)
        except BadAddress as error:
            raise UserError(f"{self._who} has an invalid URL ({error}); correct its url in the card.") from None
        except Unanswered as error:
            raise UserError(f"{self._who} {error}; start the endpoint, or correct its url in the card.") from None
        return [self._of_prompt(ids, reply) for ids, reply in zip(prompts, replies, strict=True)]

    def _read(self, response: HttpResponse) -> Rated:
        if response.status != 200:
            raise UserError(
                f"{self._who} rejected a request with HTTP {response.status}: {response.beginning()}; a teacher must "
                "give log-probs of prompts of ids (echo, logprobs); check its model, url and key."
            )
        try:
            rated = response.json()["choices"][0]["logprobs"]
            return list(rated["tokens"]), list(rated["token_logprobs"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise Trouble(f"a reply without log-probs of its prompt: {response.beginning(120)}") from None

    def _of_prompt(self, ids: list[int], reply: Rated) -> Rated:
        """The part of a reply that rates the prompt; its first token has no log-prob."""
        texts, values = reply
        rated = values[1 : len(ids)]
        numbers = all(isinstance(value, float | int) and np.isfinite(value) for value in rated)
        if len(texts) < len(ids) or len(values) < len(ids) or not numbers:
            raise UserError(
                f"{self._who} gave {len(values)} log-probs for a prompt of {len(ids)} tokens, or some that are no "
                "numbers; a teacher must rate every token of a prompt of ids."
            )
        return texts[: len(ids)], [0.0, *rated]
