"""What games that train on given answers share: their episodes, metrics and exam."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.config import Config, LossCard, SamplingSection
from scope_jax.data.rows import Row
from scope_jax.learner.types import Datum, Episode, Metrics
from scope_jax.play.game import ACTOR
from scope_jax.play.step import Memory
from scope_jax.play.tools import Tools

EXAMINED = SamplingSection(max_tokens=1024)  # of the role, which speaks in exams only, where the card says nothing


@dataclass(frozen=True)
class Encoded:
    """A conversation of the data with its tokens."""

    messages: Sequence[dict[str, Any]]
    """All of them."""
    first: int
    """The number of the first that may be trained."""
    datums: tuple[Datum, ...]
    """Its rows."""


def check_loss(cfg: Config, table: str, card: LossCard, read: Sequence[str]) -> None:
    """Raises ValueError for a key of `table`'s loss that its objective does not read, or for more mini-batches than a
    step has rows. read: the keys that it reads."""
    unread = [name for name in type(card).model_fields if name not in ("objective", "mini_batches", *read)]
    if changed := card.changed(*unread):
        raise ValueError(f'{table}.loss.{changed[0]} has no effect with objective = "{card.objective}"; remove it')
    if card.mini_batches > cfg.train.batch_size:
        raise ValueError(
            f"{table}.loss.mini_batches is {card.mini_batches}, but a step has train.batch_size = "
            f"{cfg.train.batch_size} rows; lower it"
        )


def encoded(tools: Tools, row: Row) -> Encoded:
    """A row of kind `conversations` through the chat template."""
    return Encoded(row["messages"], row["first"], tools.encode(row["messages"], row["first"], row["tools"]))


def fits(cfg: Config, one: Encoded) -> bool:
    """Whether each of its rows fits into a row of the learner."""
    return all(len(datum.ids_T) <= max(cfg.learner.buckets) for datum in one.datums)


def episode(one: Encoded, *, role: str, group: str, reward: float) -> Episode:
    """The episode of a given answer; its text is that of the messages."""
    start = next(i for i, message in enumerate(one.messages) if i >= one.first and message["role"] == "assistant")
    kinds = {"assistant": "sampled"}
    turns = [
        {"kind": kinds.get(message["role"], "observation"), "text": readable(message)}
        for message in one.messages[start:]
    ]
    text = {"prompt": "\n\n".join(map(readable, one.messages[:start])), "turns": turns}
    return Episode(role=role, policy=ACTOR, group=group, datums=one.datums, reward=reward, text=text)


def readable(message: Mapping[str, Any]) -> str:
    """What a message says, for people: its thought, content and calls."""
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    return "\n".join(filter(None, [message.get("reasoning_content", ""), message["content"], *calls]))


def metrics(tools: Tools, role: str, fitting: Sequence[bool], episodes: Sequence[Episode]) -> Metrics:
    """Of a step: its episodes, and the rows of the data that were too long, of which the user is told."""
    too_long = list(fitting).count(False)
    if too_long:
        tools.tell(
            f"{too_long} of {len(fitting)} rows of this step are longer than the largest of learner.buckets, and left "
            "out; add a larger bucket."
        )
    return {f"{role}/episodes": float(len(episodes)), f"{role}/too_long": float(too_long)}


def start(cfg: Config) -> Memory:
    """No row has been drawn."""
    return {"drawn": 0}


def remember(cfg: Config, memory: Memory, outcome: None, number: int) -> tuple[Memory, Metrics]:
    """The position in the stream of rows after a step."""
    return {"drawn": memory["drawn"] + cfg.train.batch_size}, {}
