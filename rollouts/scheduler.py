"""Which episode decodes in which slot: a FIFO queue of requests, and prefilled prompts waiting for a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rollouts.engine import Prefix
from rollouts.episodes import Episode


@dataclass
class Group:
    """Episodes that start from one prompt, in their order, and where that prompt's keys and values are."""

    prompt: np.ndarray
    members: deque[Episode] = field(default_factory=deque)
    prefix: Prefix | None = None
    row: int = 0


class Queue:
    """Episodes that wait for a slot.

    prefill makes the Prefix of some prompts of one bucket, at most `batch` of them. The order in which slots come free
    decides who decodes when, never what anyone says. Raises ValueError if a group's prompts differ.
    """

    def __init__(
        self,
        episodes: Sequence[Episode],
        prefill: Callable[[list[np.ndarray]], Prefix],
        bucket: Callable[[int], int],
        batch: int,
    ) -> None:
        self._prefill = prefill
        self._bucket = bucket
        self._batch = batch
        groups: dict[str | int, Group] = {}
        for episode in episodes:
            name = episode.index if episode.request.group is None else episode.request.group
            group = groups.setdefault(name, Group(episode.prompt))
            if not np.array_equal(group.prompt, episode.prompt):
                raise ValueError(f"Request {episode.index} has a different prompt from the rest of its group {name!r}.")
            group.members.append(episode)
        self._groups = deque(groups.values())

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, episode: Episode) -> None:
        """Puts an episode with a new prompt of its own before all others."""
        self._groups.appendleft(Group(episode.prompt, deque([episode])))

    def take(self, free: int) -> list[tuple[Prefix, list[tuple[int, Episode]]]]:
        """Up to `free` episodes, the next in the queue: for each Prefix its (row, episode) pairs."""
        taken: list[tuple[Prefix, list[tuple[int, Episode]]]] = []
        while free and self._groups:
            group = self._groups[0]
            prefix = group.prefix or self._fill(group)
            count = min(free, len(group.members))
            pairs = [(group.row, group.members.popleft()) for _ in range(count)]
            if taken and taken[-1][0] is prefix:
                taken[-1][1].extend(pairs)
            else:
                taken.append((prefix, pairs))
            free -= count
            if not group.members:
                self._groups.popleft()
        return taken

    def _fill(self, group: Group) -> Prefix:
        """Prefills the group's prompt, with those of the groups right behind it that share its bucket."""
        bucket = self._bucket(len(group.prompt))
        near = [self._groups[i] for i in range(min(self._batch, len(self._groups)))]
        batch = [g for g in near if g.prefix is None and self._bucket(len(g.prompt)) == bucket]
        prefix = self._prefill([g.prompt for g in batch])
        for row, member in enumerate(batch):
            member.prefix, member.row = prefix, row
        return prefix
