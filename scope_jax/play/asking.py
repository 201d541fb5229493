"""Requests to a judge: identical requests are sent once; a malformed reply is requested once more, then counted.

The judge is the base model, batched through the engine, or an external model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from scope_jax.grading.judge_client import UNUSABLE_AFTER, JudgeError
from scope_jax.learner.types import Reply
from scope_jax.play import searching
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Rollout
from scope_jax.play.tools import Tools
from scope_jax.text.messages import Messages
from scope_jax.text.parsing import THOUGHT
from scope_jax.web.exchange import shown

Read = TypeVar("Read")
Key = TypeVar("Key")
Send = Callable[[Sequence[str], bool], list[Reply]]  # sends requests and returns the replies; True: these are retries


@dataclass(frozen=True)
class ReadReply(Generic[Read]):
    """The judge's answer to one request."""

    read: Read | None
    """The parsed reply; None: malformed."""
    given: tuple[Reply, ...]
    """The judge's reply, followed by the second one if it was retried."""


@dataclass(frozen=True)
class Replies(Generic[Read]):
    """The judge's answers to requests, and the number of requests."""

    read: list[Read | None]
    """The parsed reply to each request, in order; None: malformed."""
    given: list[tuple[Reply, ...]]
    """To each request: the judge's reply, followed by the second one if it was retried."""
    asked: int = 0
    """Distinct requests."""
    retried: int = 0
    """Sent again because the first reply could not be parsed."""
    malformed: int = 0
    """Without a parsable reply in the end."""
    refused: int = 0
    """Of the malformed ones, those that an endpoint rejected."""

    def by(self, keys: Iterable[Key]) -> dict[Key, ReadReply[Read]]:
        """The answer to each request by its key. keys: those of the requests, in order."""
        return dict(zip(keys, map(ReadReply, self.read, self.given), strict=True))


def ask(
    send: Send,
    questions: Sequence[str],
    read: Callable[[str], Read | None],
    *,
    nudge: str = "",
    external: tuple[str, str] | None = None,
    closed: bool = False,
) -> Replies[Read]:
    """The reply to each request, parsed by `read`; a malformed reply is requested once more, with `nudge`.

    A reply that was cut is malformed, since what was to follow may have taken it back. closed: `read` takes the first
    closed pair of tags, so that what follows does not matter, and reads such a reply, too; an endpoint's only after a
    closing mark of thinking, since nobody says whether its prompt opened a thought. A rejected request is not repeated.
    external: (description of an external model, its table in the card); raises JudgeError if it replies to many
    requests and all replies are malformed.
    """

    def parse(reply: Reply) -> Read | None:
        if reply.cut and not closed:
            return None
        return read(THOUGHT[0] + reply.text if reply.cut and external is not None else reply.text)

    distinct = list(dict.fromkeys(questions))
    if not distinct:
        return Replies([], [])
    given: list[tuple[Reply, ...]] = [(reply,) for reply in send(distinct, False)]
    parsed = [parse(only) for (only,) in given]
    retries = [place for place, value in enumerate(parsed) if value is None and not given[place][0].refused]
    if retries:
        ending = f"\n\n{nudge}" if nudge else ""
        second = send([distinct[place] + ending for place in retries], True)
        for place, reply in zip(retries, second, strict=True):
            parsed[place] = parse(reply)
            given[place] = (*given[place], reply)
    malformed = sum(value is None for value in parsed)
    if external is not None and len(parsed) >= UNUSABLE_AFTER and malformed == len(parsed):
        who, key = external
        last = given[-1][-1]
        raise JudgeError(
            f"none of {malformed} replies of {who} could be read, "
            f"the last was {last.refused or repr(last.text[:120])}{f', cut ({last.cut})' if last.cut else ''}; "
            f"use a model that follows its prompt, or raise {key}.max_tokens."
        )
    places = {question: place for place, question in enumerate(distinct)}
    return Replies(
        read=[parsed[places[question]] for question in questions],
        given=[given[places[question]] for question in questions],
        asked=len(distinct),
        retried=len(retries),
        malformed=malformed,
        refused=sum(bool(replies[-1].refused) for replies in given),
    )


def ask_role(
    tools: Tools, role: Role, questions: Sequence[str], read: Callable[[str], Read | None], nudge: str
) -> Replies[Read]:
    """`ask` of a role, the base or an external model, for a `read` that takes the first closed pair of tags."""
    model = role.external
    if model is None:
        return ask(_in_engine(tools, role), questions, read, nudge=nudge, closed=True)

    def send(requests: Sequence[str], again: bool) -> list[Reply]:
        return tools.judge(requests, by=role.name, temperature=model.temperature, max_tokens=model.max_tokens)

    external = (f"the {role.name} at {shown(model.url)}", role.table)
    return ask(send, questions, read, nudge=nudge, external=external, closed=True)


def _in_engine(tools: Tools, role: Role) -> Send:
    def send(questions: Sequence[str], again: bool) -> list[Reply]:
        ending = " again" if again else ""
        rollouts = [Rollout(f"{place}{ending}", Messages(question)) for place, question in enumerate(questions)]
        groups = tools.play(role.name, rollouts, role.agent)
        return [Reply(group[0].text, cut=searching.cut_off(group[0])) for group in groups]

    return send
