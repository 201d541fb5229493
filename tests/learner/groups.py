"""Episodes that begin alike: groups of answers to a prompt, and the rows of conversations."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scope_jax.learner.types import Episode
from tests.learner.conftest import datum_of, episode_of


def _continued(rng: np.random.Generator, ids: Sequence[int], sampled: Sequence[int], **fields) -> Episode:
    logprobs = np.where(sampled, -4 + rng.normal(size=len(ids)) / 4, 0)
    return episode_of(datum_of(ids, sampled, logprobs), advantage=float(rng.normal()), **fields)


def grouped(
    groups: int,
    prompt: int,
    answers: Sequence[int],
    *,
    vocab: int = 64,
    alike: int = 2,
    temperatures: Sequence[float] = (1.0,),
    seed: int = 0,
) -> list[Episode]:
    """So many groups of answers of these lengths to prompts of `prompt` tokens; every second answer begins with the
    first `alike` tokens of the one before it."""
    rng = np.random.default_rng(seed)
    episodes = []
    for group in range(groups):
        question, before = rng.integers(0, vocab, prompt), np.zeros(0, int)
        for number, length in enumerate(answers):
            answer = rng.integers(0, vocab, length)
            same = min(alike, length, len(before)) if number % 2 else 0
            answer[0] = number  # no other two begin alike
            answer[:same] = before[:same]
            before = answer
            sampled = [0] * prompt + [1] * length
            episode = _continued(rng, [*question, *answer], sampled, group=f"g{group}")
            episodes.append(replace(episode, temperature=temperatures[number % len(temperatures)]))
    return episodes


def with_picks(episodes: Sequence[Episode], layers: int, experts: int, picked: int) -> list[Episode]:
    """The episodes with experts for each token that follow from the tokens up to it, but for the last of a datum."""

    def picks(ids: np.ndarray) -> np.ndarray:
        tokens = [np.random.default_rng(ids[: t + 1].tolist()) for t in range(len(ids) - 1)]
        chosen = [rng.random((layers, experts)).argsort(axis=-1)[:, :picked] for rng in tokens]
        return np.asarray([*chosen, np.zeros((layers, picked))], np.uint8)

    return [
        replace(episode, datums=tuple(replace(one, picked_TLk=picks(one.ids_T)) for one in episode.datums))
        for episode in episodes
    ]


def several_turns(conversations: int, turns: int, *, vocab: int = 64, seed: int = 1) -> list[Episode]:
    """Conversations of several rows: each has the one before it, the first of whose reply's tokens were taken out, as
    thoughts are, and one more question and reply."""
    rng = np.random.default_rng(seed)
    episodes = []
    system = rng.integers(0, vocab, 5).tolist()
    for conversation in range(conversations):
        datums, kept = [], list(system)
        for _ in range(turns):
            question, reply = rng.integers(0, vocab, 4).tolist(), rng.integers(0, vocab, rng.integers(2, 7)).tolist()
            ids = [*kept, *question, *reply]
            sampled = [0] * (len(ids) - len(reply)) + [1] * len(reply)
            datums.append(datum_of(ids, sampled, np.where(sampled, -4 + rng.normal(size=len(ids)) / 4, 0)))
            kept = [*kept, *question, *reply[1:]]
        episodes.append(episode_of(*datums, group=f"c{conversation // 2}", advantage=float(rng.normal())))
    return episodes
