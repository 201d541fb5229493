"""Client for a judge behind an OpenAI-compatible endpoint; independent of prompts and verdicts.

There is no fallback verdict: an endpoint that cannot be reached ends the run with an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.config import EndpointSection, JudgeSection
from scope_jax.errors import UserError
from scope_jax.learner.types import Reply
from scope_jax.web.exchange import BadAddress, Exchange, HttpResponse, Trouble, Unanswered, shown, whole

UNUSABLE_AFTER = (
    8  # with this many replies in one call and no verdict among them, the endpoint is not usable as a judge
)
# What endpoints write as finish_reason where the model ended its reply by itself; a missing one says nothing. Whatever
# else it is (length, content_filter, abort, …), the reply was cut.
ENDED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call")
ONES_OWN = (400, 413, 422)  # statuses of a rejected request, for example because it is too long or its content refused
PROBE = 10.0  # seconds


class JudgeError(UserError):
    """The judge cannot be used; the message is one sentence with the URL and the remedy."""


class Unreachable(JudgeError):
    """Nothing answers at the judge's URL."""


def authorization(card: EndpointSection, who: str) -> dict[str, str]:
    """The headers with an endpoint's key, {} if it needs none. Raises JudgeError, which calls it `who`, if the key is
    not set or none."""
    if card.api_key_env is None:
        return {}
    key = os.environ.get(card.api_key_env, "").strip()
    if not key:
        raise JudgeError(
            f"{who} needs a key in the environment variable {card.api_key_env}, "
            "which is not set; export it or remove api_key_env from the card."
        )
    if not (key.isascii() and key.isprintable()):
        raise JudgeError(
            f"the key in the environment variable {card.api_key_env} has characters that no header may have; "
            "export it again."
        )
    return {"Authorization": f"Bearer {key}"}


@dataclass(frozen=True)
class CallingReply(Reply):
    """A reply to a request with functions that calls some."""

    calls: tuple[Mapping[str, Any], ...] = ()
    """As OpenAI's protocol has them: {"id", "type", "function": {"name", "arguments"}}."""


class JudgeClient:
    """Chat completions, sent concurrently, each with retries and increasing delays.

    tell: called with a message every few seconds while the endpoint is unreachable, and at the first rejected request.
    name: what messages call it.
    """

    def __init__(self, card: JudgeSection, tell: Callable[[str], None] | None = None, name: str = "the judge") -> None:
        self._who = f"{name} at {shown(card.url)}"
        headers = authorization(card, self._who)
        self._card = card
        self._tell = tell
        self._understood = False  # whether any request has been answered
        self._refused = 0
        self._exchange = Exchange(
            card.url.rstrip("/") + "/chat/completions",
            name=name,
            timeout=card.timeout,
            retries=card.retries,
            first_delay=card.retry_delay,
            headers=headers,
            tell=tell,
        )

    def __call__(
        self, messages: Sequence[str], *, temperature: float | None = None, max_tokens: int | None = None
    ) -> list[Reply]:
        """The model's reply to each message, in order; raises `JudgeError` if one gets no reply within its retries.

        None: the card's temperature and max_tokens. A request rejected with HTTP 400, 413 or 422 gets an empty reply
        marked as refused; if all requests are rejected, `JudgeError` is raised.
        """
        card = self._card
        sampling = {
            "temperature": card.temperature if temperature is None else temperature,
            card.max_tokens_field: card.max_tokens if max_tokens is None else max_tokens,
        }
        return self.send([{"messages": [{"role": "user", "content": message}]} | sampling for message in messages])

    def send(self, requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """The replies to whole requests, to which model and `extra_body` are added; raises as a call does."""
        bodies = [{"model": self._card.model, **request, **self._card.extra_body} for request in requests]
        try:
            replies = self._exchange.post(bodies, self._read, self._card.concurrency)
        except BadAddress as error:
            raise JudgeError(f"{self._who} has an invalid URL ({error}); correct its url in the card.") from None
        except Unanswered as error:
            raise JudgeError(f"{self._who} {error}; start the endpoint, or correct its url in the card.") from None
        self._count(replies)
        return replies

    def close(self) -> None:
        """Closes the connections."""
        self._exchange.close()

    def probe(self) -> None:
        """Raises `Unreachable` if nothing answers at the URL, and `JudgeError` for an invalid URL."""
        try:
            self._exchange.get(self._card.url.rstrip("/") + "/models", PROBE)
        except BadAddress as error:
            raise JudgeError(f"{self._who} has an invalid URL ({error}); correct its url in the card.") from None
        except Unanswered as error:
            raise Unreachable(
                f"{self._who} cannot be reached ({error}); start the endpoint, or correct its url in the card."
            ) from None

    def _read(self, response: HttpResponse) -> Reply:
        if response.status in ONES_OWN:
            return Reply("", refused=f"HTTP {response.status}: {response.beginning()}")
        if response.status != 200:
            raise JudgeError(
                f"{self._who} rejected a request with HTTP {response.status}: {response.beginning()}; "
                f"check its model in the card ({self._card.model}), its url and the key."
            )
        reply = _reply(response)
        if reply is None:
            raise Trouble(f"a reply that is not a chat completion: {response.beginning(120)}")
        return reply

    def _count(self, replies: Sequence[Reply]) -> None:
        """Reports the first rejected request; raises `JudgeError` after many rejections without any reply."""
        refusals = [reply.refused for reply in replies if reply.refused]
        self._understood = self._understood or len(refusals) < len(replies)
        if refusals and not self._refused and self._tell is not None:
            self._tell(f"{self._who} rejected a request with {refusals[0]}; it counts as a reply without a verdict.")
        self._refused += len(refusals)
        if self._refused >= UNUSABLE_AFTER and not self._understood:
            raise JudgeError(
                f"{self._who} rejected all {self._refused} requests, the last with {refusals[-1]}; "
                "check its model, extra_body and max_tokens_field in the card."
            )


def _reply(response: HttpResponse) -> Reply | None:
    """The reply in a chat completion, None if the response is not one. If a model spent all its tokens on thinking, its
    content is null: an empty reply, without a verdict, not a fault of the endpoint."""
    try:
        choice = response.json()["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        calls = message.get("tool_calls") or []
        content = message.get("content") if calls else message["content"]
        called = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    if not isinstance(content, str | None) or not isinstance(finish, str | None):
        return None
    cut = whole(finish) if finish and finish.lower() not in ENDED else ""
    if not all(isinstance(text, str) for call in called for text in call):
        return None
    if called:
        return CallingReply(whole(content or ""), cut=cut, calls=tuple(calls))
    return Reply(whole(content or ""), cut=cut)
