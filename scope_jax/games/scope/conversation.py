"""How SCOPE's policies search: the only module of the game that depends on dialects and turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.games.scope import instructions
from scope_jax.games.scope.options import options
from scope_jax.games.scope.rules import ParsedTurn
from scope_jax.play import searching
from scope_jax.play.searching import Search
from scope_jax.play.turns import Cut
from scope_jax.rollouts.types import Completion, Turn
from scope_jax.text import dialects
from scope_jax.text.dialects import Dialect
from scope_jax.text.dialects.calls import calls


def _dialect(cfg: Config) -> Dialect:
    return dialects.load(cfg.model.dialect)


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn: the closing tag of the episode's result, and that of a search."""
    searches = final == "task" or options(cfg).solver_stops_at_search
    return (*([_dialect(cfg).close] if searches else []), f"</{final}>")


def responder(
    cfg: Config, search: Search, final: str, expected: int | None = None
) -> Callable[[Sequence[Turn]], str | Cut | None]:
    """The responder of a turn: results of its first search, a note that the search was not run, or None to end the
    episode.

    Position decides: a closed `<final>` that begins before the first valid search ends the episode; all text after the
    search is dropped, including a `<final>` or invented results.
    expected: with a number, each observation says how many turns are left for searches, and a search after the last
    of them is not run (the dynamic turns of the released code); None: no such limit.
    """
    respond_to_search = searching.responder(
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
        response = respond_to_search(turns)
        if response is None or expected is None:
            return response
        left = f"\n{instructions.turns_left(cfg, expected - sampled)}"
        return replace(response, text=response.text + left) if isinstance(response, Cut) else response + left

    return respond


def parse_turn(cfg: Config, turn: Turn, final: str, answered: bool) -> ParsedTurn:
    """A turn as the rules see it: text after its first search is dropped; the search counts if it was answered."""
    dialect = _dialect(cfg)
    found = calls(turn.content, dialect)
    first = searching.first_query(found, turn.content, dialect, (final,))
    if first is not None:
        turn = replace(turn, text=turn.text[: first[1]])
    malformed = sum(call.query is None and call.start < len(turn.text) for call in found)
    return ParsedTurn(searching.whole(turn), turn.content, int(first is not None and answered), malformed)


def parse_turns(cfg: Config, completion: Completion, final: str) -> tuple[ParsedTurn, ...]:
    """The sampled turns of an episode that ends in `<final>`; every turn but the episode's last one was answered."""
    return tuple(
        parse_turn(cfg, turn, final, place < len(completion.turns) - 1)
        for place, turn in enumerate(completion.turns)
        if turn.kind == "sampled"
    )


def evidence(cfg: Config, completion: Completion) -> list[str]:
    """The search result texts that the policy read, without duplicates."""
    return list(dict.fromkeys(searching.results_read(completion, _dialect(cfg))))
