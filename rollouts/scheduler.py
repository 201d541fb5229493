"""Which episode gets a slot next: a queue of requests, first in, first out within an order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scope_jax.rollouts.episodes import ActiveEpisode


@dataclass
class PromptGroup:
    """Episodes that start from the same prompt, in order."""

    prompt: np.ndarray
    policy: str | None = None
    order: int = 0
    members: deque[ActiveEpisode] = field(default_factory=deque)


def grouped(episodes: Sequence[ActiveEpisode]) -> list[PromptGroup]:
    """Episodes by group, those that have begun each alone. Raises ValueError if prompts or policies of a group
    differ."""
    groups: dict[str | int, PromptGroup] = {}
    for episode in episodes:
        name = episode.index if episode.request.group is None or episode.begun else episode.request.group
        policy = episode.request.policy
        group = groups.setdefault(name, PromptGroup(episode.prompt, policy, episode.order))
        if group.policy != policy:
            raise ValueError(f"Request {episode.index} has another policy than the rest of its group {name!r}.")
        if not np.array_equal(group.prompt, episode.prompt):
            raise ValueError(f"Request {episode.index} has a different prompt from the rest of its group {name!r}.")
        group.members.append(episode)
    return list(groups.values())


class Queue:
    """Episodes that wait for a slot.

    The order in which slots are freed decides when an episode decodes, never what it samples.
    """

    def __init__(self) -> None:
        self._groups: deque[PromptGroup] = deque()

    def append(self, episodes: Sequence[ActiveEpisode]) -> None:
        """Puts episodes behind all others of their order or a lower one, each group together. Raises ValueError if its
        prompts or policies differ."""
        for group in grouped(episodes):
            place = len(self._groups)
            while place and self._groups[place - 1].order > group.order:
                place -= 1
            self._groups.insert(place, group)

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
        """Puts episodes with new prompts before all others of their order; otherwise as `append`."""
        for group in grouped(episodes):
            place = 0
            while place < len(self._groups) and self._groups[place].order < group.order:
                place += 1
            self._groups.insert(place, group)

    def next_prompts(self, count: int) -> list[np.ndarray]:
        """The prompts of the next `count` episodes, in order."""
        prompts: list[np.ndarray] = []
        for group in self._groups:
            prompts += [group.prompt] * min(len(group.members), count - len(prompts))
            if len(prompts) == count:
                break
        return prompts

    def take(self, free: int) -> list[ActiveEpisode]:
        """The next episodes in the queue, at most `free`."""
        taken: list[ActiveEpisode] = []
        while len(taken) < free and self._groups:
            group = self._groups[0]
            count = min(free - len(taken), len(group.members))
            taken += [group.members.popleft() for _ in range(count)]
            if not group.members:
                self._groups.popleft()
        return taken
