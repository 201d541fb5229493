"""How SCOPE's policies search: the one module of the game that knows the syntax of a search call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollouts.types import Completion, Turn
from scope_jax import parsing, searching
from scope_jax.config import Config
from scope_jax.systems.scope import instructions
from scope_jax.systems.scope.rules import Said
from scope_jax.types import Datum, Tools


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn: a search, or the closing tag of the episode's result."""
    return ("</search>", f"</{final}>")


def responder(
    cfg: Config, tools: Tools, final: str, expected: int | None = None
) -> Callable[[Sequence[Turn]], str | None]:
    """What a turn gets: results, a note that its search was not run, or None where the episode is over.

    expected: with a number of searches each observation says how many turns are left for them, and a search after the
    last of them is not run (the dynamic turns of the released code); None: any number of searches.
    """

    def respond(turns: Sequence[Turn]) -> str | None:
        text = turns[-1].text
        if turns[-1].finish == "eos" or parsing.first([text], final) is not None:
            return None
        queries, said = parsing.searches(text), heard(cfg, text)
        spoken = sum(turn.kind == "sampled" for turn in turns)
        if not (queries or said.malformed) or (expected is not None and spoken > expected):
            return None
        told = parsing.observation(tools.search(queries)) if queries else f"\n{instructions.not_run(cfg, syntax(cfg))}\n\n"
        return told if expected is None else f"{told}{instructions.turns_left(cfg, expected - spoken)}\n\n"

    return respond


def heard(cfg: Config, text: str) -> Said:
    """A turn's text with its search calls counted: valid ones are closed and not empty, all others malformed."""
    valid = sum(bool(content) for content in parsing.spans(text, "search"))
    return Said(text, valid, max(0, text.count("<search>") - valid))


def said(cfg: Config, completion: Completion) -> tuple[Said, ...]:
    """The policy's own turns."""
    return tuple(heard(cfg, text) for text in searching.said(completion))


def evidence(cfg: Config, completion: Completion) -> list[str]:
    """The result texts that the policy read, each once."""
    return list(dict.fromkeys(searching.results_read(completion)))


def searches_run(cfg: Config, completion: Completion) -> int:
    """Number of queries that were answered."""
    return len(searching.queries_run(completion))


def rows(completion: Completion) -> tuple[Datum, ...]:
    """The training rows of an episode, exactly what the engine saw."""
    return (Datum.from_completion(completion),)


def syntax(cfg: Config) -> dict[str, str]:
    """What prompts say about searching, by the name of the template's variable."""
    return {
        "search": "<search> your query </search>",
        "results": "between <information> and </information>",
    }
