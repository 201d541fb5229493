"""How SCOPE's policies search: the one module of the game that depends on dialects and turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rollouts.types import Completion, Turn
from scope_jax.config import Config
from scope_jax.play import searching
from scope_jax.play.searching import Search
from scope_jax.play.turns import Cut
from scope_jax.systems.scope import instructions
from scope_jax.systems.scope.rules import Said
from scope_jax.text import dialects
from scope_jax.text.dialects import Dialect
from scope_jax.text.dialects.calls import calls


def _dialect(cfg: Config) -> Dialect:
    return dialects.load(cfg.model.dialect)


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn: the closing tag of the episode's result, and that of a search."""
    searches = final == "task" or cfg.scope.solver_stops_at_search
    return (*([_dialect(cfg).close] if searches else []), f"</{final}>")


def responder(
    cfg: Config, search: Search, final: str, expected: int | None = None
) -> Callable[[Sequence[Turn]], str | Cut | None]:
    """What a turn gets: results of its first search, a note that it was not run, or None where the episode is over.

    By position: a closed `<final>` that begins before the first valid search ends the episode; what is said behind the
    search, a `<final>` or results made up among it, is dropped.
    expected: with a number of searches each observation says how many turns are left for them, and a search after the
    last of them is not run (the dynamic turns of the released code); None: any number of searches.
    """
    answer = searching.responder(
        search,
        _dialect(cfg),
        (final,),
        first_only=True,
        end_token_ends=cfg.model.turns == "raw",
        malformed=instructions.not_run(cfg),
    )

    def respond(turns: Sequence[Turn]) -> str | Cut | None:
        sampled = sum(turn.kind == "sampled" for turn in turns)
        if expected is not None and sampled > expected:
            return None
        told = answer(turns)
        if told is None or expected is None:
            return told
        left = f"\n{instructions.turns_left(cfg, expected - sampled)}"
        return replace(told, text=told.text + left) if isinstance(told, Cut) else told + left

    return respond


def parse_turn(cfg: Config, turn: Turn, final: str, answered: bool) -> Said:
    """A turn as the rules see it: without what stands behind its first search, which counts if it was answered."""
    dialect = _dialect(cfg)
    begun = calls(turn.content, dialect)
    first = searching.first_query(begun, turn.content, dialect, (final,))
    if first is not None:
        turn = replace(turn, text=turn.text[: first[1]])
    malformed = sum(call.query is None and call.start < len(turn.text) for call in begun)
    return Said(searching.whole(turn), turn.content, int(first is not None and answered), malformed)


def said(cfg: Config, completion: Completion, final: str) -> tuple[Said, ...]:
    """The policy's own turns, in episodes that end in `<final>`; all but the last piece of an episode were answered."""
    pieces = completion.turns
    return tuple(
        parse_turn(cfg, piece, final, place < len(pieces) - 1)
        for place, piece in enumerate(pieces)
        if piece.kind == "sampled"
    )


def evidence(cfg: Config, completion: Completion) -> list[str]:
    """The result texts that the policy read, each once."""
    return list(dict.fromkeys(searching.results_read(completion, _dialect(cfg))))
