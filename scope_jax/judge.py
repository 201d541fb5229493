"""Who says that an answer is right: exact match, a chat model behind an OpenAI-compatible endpoint, or both in turn.

Nothing is graded by default: an endpoint that cannot be reached stops the run with one sentence, and a reply that is no
verdict is asked for once more, then counted (`Grades.unparsed`) and earns no reward.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import httpx

from scope_jax import rewards, templates
from scope_jax.config import JudgeSection
from scope_jax.parsing import neutralise, spoken

_LONGEST_DELAY = 30.0  # seconds between two tries
_DEAF_AFTER = 8  # so many replies in one call, and not one verdict: the endpoint is no judge
_WORD = re.compile(r"[a-z']+")


class JudgeError(ValueError):
    """The judge cannot be used: the message is one sentence with the URL and what to do."""


Ask = Callable[[Sequence[str]], list[str]]  # replies of the judge model to single user messages


class JudgeClient:
    """Chat completions of single user messages, several at a time, each with retries and growing delay."""

    def __init__(self, card: JudgeSection) -> None:
        headers = {}
        if card.api_key_env is not None:
            key = os.environ.get(card.api_key_env)
            if not key:
                raise JudgeError(
                    f"the judge at {card.url} wants a key from the environment variable {card.api_key_env}, "
                    "which is not set; export it or remove api_key_env from the card."
                )
            headers["Authorization"] = f"Bearer {key}"
        self._card = card
        self._http = httpx.Client(headers=headers, timeout=card.timeout)
        self._url = card.url.rstrip("/") + "/chat/completions"

    def __call__(
        self, messages: Sequence[str], *, temperature: float | None = None, max_tokens: int | None = None
    ) -> list[str]:
        """The model's reply to each message, in order; raises `JudgeError` when one gets none within the retries.

        None: the card's own temperature and max_tokens.
        """
        sampling = {
            "temperature": self._card.temperature if temperature is None else temperature,
            "max_tokens": self._card.max_tokens if max_tokens is None else max_tokens,
        }
        if not messages:
            return []
        pool = ThreadPoolExecutor(min(self._card.concurrency, len(messages)))
        try:
            return list(pool.map(partial(self._ask, sampling=sampling), messages))
        finally:  # after a failure the requests that wait are dropped, or each would spend its retries first
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        self._http.close()

    def probe(self) -> None:
        """Returns if anything answers at the URL, so that a run with a dead judge ends before its first episode."""
        try:
            self._http.get(self._card.url.rstrip("/") + "/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise JudgeError(
                f"the judge at {self._card.url} cannot be reached ({error}); start the endpoint, or correct its url in "
                "the card."
            ) from None

    def _ask(self, message: str, sampling: dict[str, float | int]) -> str:
        body = {"model": self._card.model, "messages": [{"role": "user", "content": message}], **sampling}
        trouble = ""
        for attempt in range(self._card.retries + 1):
            if attempt:
                time.sleep(min(self._card.retry_delay * 2 ** (attempt - 1), _LONGEST_DELAY))
            try:
                response = self._http.post(self._url, json=body)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                trouble = str(error) or type(error).__name__
                continue
            if response.status_code >= 500 or response.status_code in (408, 429):
                trouble = f"HTTP {response.status_code}"
                continue
            if response.status_code != 200:
                raise JudgeError(
                    f"the judge at {self._card.url} refused a request with HTTP {response.status_code}: "
                    f"{response.text[:200]!r}; check its model in the card ({self._card.model}) and the key."
                )
            reply = _content(response)
            if reply is not None:
                return reply
            trouble = f"a reply that is no chat completion: {response.text[:120]!r}"
        raise JudgeError(
            f"the judge at {self._card.url} did not answer after {self._card.retries + 1} tries ({trouble}); "
            "start the endpoint, or correct its url in the card."
        )


def _content(response: httpx.Response) -> str | None:
    """The text of a chat completion, None if it is none. A model that spent all its tokens on a thought says nothing:
    its content is null, and that is a reply without a verdict, not an endpoint in trouble."""
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    if content is None:
        return ""
    return content if isinstance(content, str) else None


def verdict(reply: str) -> bool | None:
    """True for Correct, False for Wrong or Incorrect, None for anything else (both words, neither, a negation).

    What the reply thinks is no part of it; a thought that was cut off leaves nothing.
    """
    words = _WORD.findall(spoken(reply).lower())
    said = {word for word in words if word in ("correct", "wrong", "incorrect")}
    if len(said) != 1 or any(word in ("not", "isn't", "never", "neither") for word in words):
        return None
    return said == {"correct"}


@dataclass(frozen=True)
class Case:
    """One prediction to grade; None where the policy gave none."""

    question: str
    prediction: str | None
    golds: tuple[str, ...]


@dataclass(frozen=True)
class Grades:
    """`correct` for each case in order; how many were put to the judge and how many of those got no verdict."""

    correct: list[bool]
    judged: int
    unparsed: int


def grade(grader: str, prompts: str, ask: Ask, cases: Sequence[Case]) -> Grades:
    """Grades of `cases` by "exact-match", "judge" or "exact-match-then-judge" (the judge sees what did not match).

    `prompts` is the folder with `judge.txt`. A missing or empty prediction is wrong without asking. Equal cases are
    asked once. Raises `JudgeError` when the judge answers many requests and none of the replies is a verdict.
    """
    correct = [
        grader != "judge" and bool(case.prediction) and rewards.exact_match(case.prediction or "", case.golds)
        for case in cases
    ]
    if grader == "exact-match":
        return Grades(correct, 0, 0)
    template = templates.load(
        prompts, "judge", known=("question", "prediction", "ground_truth"), required=("prediction", "ground_truth")
    )
    open_cases = list(
        dict.fromkeys(case for case, right in zip(cases, correct, strict=True) if case.prediction and not right)
    )
    verdicts = dict(zip(open_cases, _verdicts(ask, [_message(template, case) for case in open_cases]), strict=True))
    unparsed = sum(value is None for value in verdicts.values())
    settled = [right or bool(verdicts.get(case)) for case, right in zip(cases, correct, strict=True)]
    return Grades(settled, len(open_cases), unparsed)


def _message(template: str, case: Case) -> str:
    truth = case.golds[0] if len(case.golds) == 1 else " / ".join(case.golds)
    return templates.fill(
        template,
        {"question": neutralise(case.question), "prediction": neutralise(case.prediction or ""), "ground_truth": truth},
    )


def _verdicts(ask: Ask, messages: Sequence[str]) -> list[bool | None]:
    """Verdict of each message; those without one are asked once more."""
    replies = ask(messages) if messages else []
    found = [verdict(reply) for reply in replies]
    again = [index for index, value in enumerate(found) if value is None]
    if again:
        for index, reply in zip(again, ask([messages[index] for index in again]), strict=True):
            found[index] = verdict(reply)
    if len(found) >= _DEAF_AFTER and all(value is None for value in found):
        raise JudgeError(
            f"none of {len(found)} replies of the judge says Correct or Wrong, the last was {replies[-1][:120]!r}; "
            "use a judge model that follows judge.txt, or raise judge.max_tokens."
        )
    return found
