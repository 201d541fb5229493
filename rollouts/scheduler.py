"""Which episode decodes in which slot: a FIFO queue of requests, and prefilled prompts waiting for a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scope_jax.rollouts.episodes import ActiveEpisode


@dataclass
class PromptGroup:
    """Episodes that start from the same prompt, in order, and where that prompt's keys and values are."""

    prompt: np.ndarray
    policy: str | None = None
    members: deque[ActiveEpisode] = field(default_factory=deque)
    prefix: Any = None  # the engine's
    row: int = 0


def grouped(episodes: Sequence[ActiveEpisode]) -> list[PromptGroup]:
    """Episodes by group, those that have begun each alone. Raises ValueError if prompts or policies of a group
    differ."""
    groups: dict[str | int, PromptGroup] = {}
    for episode in episodes:
        name = episode.index if episode.request.group is None or episode.turns else episode.request.group
        policy = episode.request.policy
        group = groups.setdefault(name, PromptGroup(episode.prompt, policy))
        if group.policy != policy:
            raise ValueError(f"Request {episode.index} has another policy than the rest of its group {name!r}.")
        if not np.array_equal(group.prompt, episode.prompt):
            raise ValueError(f"Request {episode.index} has a different prompt from the rest of its group {name!r}.")
        group.members.append(episode)
    return list(groups.values())


class Queue:
    """Episodes that wait for a slot.

    prefill(prompts, policies) gives the engine's prefix of at most `batch` prompts of one bucket, each under a policy.
    The order in which slots are freed decides when an episode decodes, never what it samples.
    """

    def __init__(
        self,
        prefill: Callable[[list[np.ndarray], list[str | None]], Any],
        bucket: Callable[[int], int],
        batch: int,
    ) -> None:
        self._prefill = prefill
        self._bucket = bucket
        self._batch = batch
        self._groups: deque[PromptGroup] = deque()

    def append(self, episodes: Sequence[ActiveEpisode]) -> None:
        """Puts episodes at the end of the queue, each group together. Raises ValueError if its prompts or policies
        differ."""
        self._groups.extend(grouped(episodes))

    def remove(self, episode: ActiveEpisode) -> None:
        """Takes an episode out of the queue, if it is there."""
        for group in self._groups:
            if episode in group.members:
                group.members.remove(episode)
        self._groups = deque(group for group in self._groups if group.members)

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def count(self) -> int:
        """How many episodes wait."""
        return sum(len(group.members) for group in self._groups)

    def add(self, episodes: Sequence[ActiveEpisode]) -> None:
        """Puts episodes with new prompts at the head of the queue; otherwise as `append`."""
        self._groups.extendleft(grouped(episodes))

    def next_prompts(self, count: int) -> list[np.ndarray]:
        """The prompts of the next `count` episodes, in order."""
        prompts: list[np.ndarray] = []
        for group in self._groups:
            prompts += [group.prompt] * min(len(group.members), count - len(prompts))
            if len(prompts) == count:
                break
        return prompts

    def take(self, free: int) -> list[tuple[Any, list[tuple[int, ActiveEpisode]]]]:
        """The next episodes in the queue, at most `free`: for each prefix its (row, episode) pairs."""
        taken: list[tuple[Any, list[tuple[int, ActiveEpisode]]]] = []
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

    def _fill(self, group: PromptGroup) -> Any:
        """Prefills the group's prompt, together with those of the groups directly behind it in the same bucket."""
        bucket = self._bucket(len(group.prompt))
        near = [self._groups[i] for i in range(min(self._batch, len(self._groups)))]
        batch = [g for g in near if g.prefix is None and self._bucket(len(g.prompt)) == bucket]
        prefix = self._prefill([g.prompt for g in batch], [g.policy for g in batch])
        for row, member in enumerate(batch):
            member.prefix, member.row = prefix, row
        return prefix
