"""`Rollouts` that follow a script, to test a game deterministically without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.interactions import ActiveInteraction, Driver
from scope_jax.rollouts.types import Completion, Request, TextCodec, Turn

Script = Callable[[str, tuple[Turn, ...]], str]


class ScriptedRollouts:
    """Runs requests with `script(prompt text, turns so far) -> text of the next turn`.

    The prompt is that of the current row: after a `Restart`, the new one.

    The text is tokenised and cut by the same rules as sampled tokens: stop strings, stop ids, max_tokens, max_length.
    A text that none of them ends gets the tokenizer's first end token, as a policy would sample it. Log-probs are 0: a
    script's tokens have probability 1. Responders are called in another thread, one after the other.
    """

    def __init__(self, script: Script, tokenizer: TextCodec, *, max_length: int) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._max_length = max_length

    @property
    def slots(self) -> int:
        """A script answers one at a time."""
        return 1

    @property
    def params(self) -> Any:
        """A script has no weights."""

    def load_params(self, params: Any) -> None:
        """A script has no weights."""

    def take_params(self, params: Any) -> Any:
        """A script has no weights."""

    def use(self, taken: Any) -> None:
        """A script has no weights."""

    def load_adapter(self, policy: str, factors: Any) -> None:
        """A script has no weights."""

    def unquantized(self) -> AbstractContextManager[bool]:
        """A script has no weights."""
        return nullcontext(False)

    def clear(self) -> None:
        """A script has no cache."""

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Runs every request, in order."""
        episodes = [ActiveEpisode(request, i, self._tokenizer, self._max_length) for i, request in enumerate(requests)]
        with ThreadPoolExecutor(1, thread_name_prefix="responder") as pool:
            for episode in episodes:
                while episode.finish_reason is None:
                    if not self._goes_on(episode, pool) and episode.finish_reason is None:
                        episode.end()
        return [episode.completion() for episode in episodes]

    def interaction(self, driver: Driver) -> ActiveInteraction:
        """A rollout whose rows the driver asks for."""

        def row(request: Request, number: int) -> ActiveEpisode:
            return ActiveEpisode(request, number, self._tokenizer, self._max_length)

        return ActiveInteraction(driver, row)

    def interact(
        self,
        interactions: Sequence[ActiveInteraction],
        weights: str = "",
        more: Iterator[Sequence[ActiveInteraction]] | None = None,
    ) -> None:
        """Plays interactions one after the other, and then those of `more`; a script has one set of weights."""
        with ThreadPoolExecutor(1, thread_name_prefix="responder") as pool:
            for part in (interactions, *(more or ())):
                for interaction in part:
                    self._play(interaction, pool)

    def _play(self, interaction: ActiveInteraction, pool: ThreadPoolExecutor) -> None:
        while not interaction.over:
            outcomes = interaction.ask(pool.submit(interaction.advance).result(), lambda: 0)
            for row, outcome in outcomes:
                while outcome != "over" and self._goes_on(row, pool):
                    pass
                interaction.answered(row)
            if not outcomes:
                interaction.end()

    def _goes_on(self, episode: ActiveEpisode, pool: ThreadPoolExecutor) -> bool:
        """Lets an episode have one turn, and its responder reply; whether it has another turn."""
        self._speak(episode)
        reply = episode.reply_of(pool.submit(episode.ask)) if episode.asks else None
        return reply is not None and episode.observe(reply) != "over"

    def _speak(self, episode: ActiveEpisode) -> None:
        text = self._script(self._tokenizer.decode(episode.prompt.tolist()), tuple(episode.turns))
        for token in self._tokenizer.encode(text):
            if episode.take(token, 0.0) is not None:
                return
        end = self._tokenizer.eos_ids[0]
        if episode.take(end, 0.0) is None:
            episode.close("eos")  # the end token ends a script's turn even if the request's stop_ids do not list it
