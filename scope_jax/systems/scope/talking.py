"""How SCOPE's policies search: the one module of the game that knows about dialects and turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollouts.types import Completion, Turn
from scope_jax import dialects, searching
from scope_jax.config import Config
from scope_jax.dialects import Dialect
from scope_jax.dialects.calls import calls
from scope_jax.systems.scope import instructions
from scope_jax.systems.scope.rules import Said
from scope_jax.types import Tools


def _dialect(cfg: Config) -> Dialect:
    return dialects.load(cfg.model.dialect)


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn: the closing tag of the episode's result, and that of a search."""
    searches = final == "task" or cfg.scope.solver_stops_at_search
    return (*([_dialect(cfg).close] if searches else []), f"</{final}>")


def _result_first(text: str, final: str, dialect: Dialect) -> bool:
    """True if a turn's first closed `<final>` begins before its first valid search, which may even lie inside."""
    end = text.find(f"</{final}>")
    start = text.rfind(f"<{final}>", 0, end) if end >= 0 else -1
    return 0 <= start < min((call.start for call in calls(text, dialect) if call.valid), default=len(text))


def responder(
    cfg: Config, tools: Tools, final: str, expected: int | None = None
) -> Callable[[Sequence[Turn]], str | None]:
    """What a turn gets: results of its first search, a note that it was not run, or None where the episode is over.

    By position: a closed `<final>` that begins before the first valid search ends the episode, one behind it counts for
    nothing.
    expected: with a number of searches each observation says how many turns are left for them, and a search after the
    last of them is not run (the dynamic turns of the released code); None: any number of searches.
    """
    answer = searching.responder(
        tools.search,
        _dialect(cfg),
        (final,),
        first_only=True,
        end_token_ends=cfg.model.turns == "raw",
        malformed=instructions.not_run(cfg),
    )

    def respond(turns: Sequence[Turn]) -> str | None:
        spoken = sum(turn.kind == "sampled" for turn in turns)
        late = expected is not None and spoken > expected
        if late or _result_first(turns[-1].text, final, _dialect(cfg)):
            return None
        told = answer(turns)
        if told is None or expected is None:
            return told
        return f"{told}\n{instructions.turns_left(cfg, expected - spoken)}"

    return respond


def heard(cfg: Config, text: str) -> Said:
    """A turn's text with its search calls counted, valid and malformed ones."""
    found = [call.valid for call in calls(text, _dialect(cfg))]
    return Said(text, found.count(True), found.count(False))


def said(cfg: Config, completion: Completion) -> tuple[Said, ...]:
    """The policy's own turns."""
    return tuple(heard(cfg, text) for text in searching.said(completion))


def evidence(cfg: Config, completion: Completion) -> list[str]:
    """The result texts that the policy read, each once."""
    return list(dict.fromkeys(searching.results_read(completion, _dialect(cfg))))


def searches_run(cfg: Config, completion: Completion) -> int:
    """Number of searches that were answered."""
    return len(searching.queries_run(completion, _dialect(cfg), first_only=True))
