"""Requests to a judge: identical requests are sent once; a malformed reply is requested once more, then counted.

The judge is the base model, batched through the engine, or an external model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from retrieval.exchange import shown
from scope_jax.config import AskSection, JudgeSection
from scope_jax.learner.types import Reply
from scope_jax.play import searching
from scope_jax.play.judge_client import DEAF_AFTER, JudgeError
from scope_jax.play.tools import BASE, Prompt, Tools
from scope_jax.text.messages import Messages

Read = TypeVar("Read")
Say = Callable[[Sequence[str], bool], list[Reply]]  # replies to some questions; True: these are asked a second time


@dataclass(frozen=True)
class Replies(Generic[Read]):
    """The parsed reply to each request, in order (None: malformed), and the number of requests."""

    read: list[Read | None]
    given: list[tuple[Reply, ...]]  # to each question: what the judge said, the second time too if it was asked twice
    asked: int = 0  # different questions
    retried: int = 0  # asked again, since the first reply could not be read
    malformed: int = 0  # of which nothing was read in the end
    refused: int = 0  # of these, the ones that an endpoint did not take


def ask(
    say: Say,
    questions: Sequence[str],
    read: Callable[[str], Read | None],
    *,
    nudge: str = "",
    outsider: tuple[str, str] | None = None,
) -> Replies[Read]:
    """The reply to each request, parsed by `read`; a malformed reply is requested once more, with `nudge`.

    A rejected request is not repeated. outsider: (description of an external model, its table in the card); raises
    JudgeError if it replies to many requests and all replies are malformed.
    """
    different = list(dict.fromkeys(questions))
    if not different:
        return Replies([], [])
    given: list[tuple[Reply, ...]] = [(reply,) for reply in say(different, False)]
    found = [read(only.text) for (only,) in given]
    again = [place for place, value in enumerate(found) if value is None and not given[place][0].refused]
    if again:
        ending = f"\n\n{nudge}" if nudge else ""
        second = say([different[place] + ending for place in again], True)
        for place, reply in zip(again, second, strict=True):
            found[place] = read(reply.text)
            given[place] = (*given[place], reply)
    lost = sum(value is None for value in found)
    if outsider is not None and len(found) >= DEAF_AFTER and lost == len(found):
        who, key = outsider
        last = given[-1][-1]
        raise JudgeError(
            f"none of {lost} replies of {who} could be read, the last was {last.refused or repr(last.text[:120])}; "
            f"use a model that follows its prompt, or raise {key}.max_tokens."
        )
    places = {question: place for place, question in enumerate(different)}
    return Replies(
        read=[found[places[question]] for question in questions],
        given=[given[places[question]] for question in questions],
        asked=len(different),
        retried=len(again),
        malformed=lost,
        refused=sum(bool(replies[-1].refused) for replies in given),
    )


@dataclass(frozen=True)
class Judge:
    """The judge for one job.

    name: the job, as a role in the engine or as an external model of `Tools.judge`. card: the job's table in the card.
    key: the key of that table.
    """

    name: str
    key: str
    card: AskSection

    @property
    def outside(self) -> dict[str, JudgeSection]:
        """The external model under the name of the job; {} if the base does it."""
        if self.card.endpoint is None:
            return {}
        table = self.card.endpoint.model_dump()
        return {self.name: JudgeSection(**table, temperature=self.card.temperature, max_tokens=self.card.max_tokens)}

    def ask(
        self, tools: Tools, questions: Sequence[str], read: Callable[[str], Read | None], nudge: str
    ) -> Replies[Read]:
        """`ask`, of this judge."""
        endpoint = self.card.endpoint
        if endpoint is None:
            return ask(self._in_engine(tools), questions, read, nudge=nudge)

        def say(asked: Sequence[str], again: bool) -> list[Reply]:
            return tools.judge(asked, by=self.name, temperature=self.card.temperature, max_tokens=self.card.max_tokens)

        outsider = (f"the {self.name} at {shown(endpoint.url)}", self.key)
        return ask(say, questions, read, nudge=nudge, outsider=outsider)

    def _in_engine(self, tools: Tools) -> Say:
        def say(questions: Sequence[str], again: bool) -> list[Reply]:
            asked = [Messages(question) for question in questions]
            names = [f"{place} again" if again else f"{place}" for place in range(len(asked))]
            groups = tools.generate(
                self.name,
                [Prompt(tools.encode_prompt(said), name, said) for said, name in zip(asked, names, strict=True)],
                1,
                policy=BASE,
                temperature=self.card.temperature,
                max_tokens=self.card.max_tokens,
            )
            return [Reply(searching.written(group[0])) for group in groups]

        return say
