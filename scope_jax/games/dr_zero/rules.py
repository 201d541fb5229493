"""The rules of Dr. Zero: a proposal's format score and difficulty, answers. Pure functions."""

import re
from collections.abc import Sequence

from scope_jax.play import searching
from scope_jax.play.rewards import normalise
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing
from scope_jax.text.dialects import Dialect

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


def read_pair(completion: Completion, document: str, hops: int, dialect: Dialect) -> tuple[str, str, dict[str, float]]:
    """(question, answer, parts) of an episode, "" for what is missing; parts: those of `format_parts`, and "searches".
    Results count as read if every search was answered."""
    said = searching.contents(completion)
    question, answer = (parsing.last(said, tag) or "" for tag in ("question", "answer"))
    run = len(searching.queries_run(completion, dialect))
    counted = run * (run == sum(len(searching.queries_of(text, dialect)) for text in said))
    read = "\n\n".join([document, *(searching.results_read(completion, dialect) if counted else ())])
    turns = [turn.written for turn in completion.turns if turn.kind == "sampled"]
    return question, answer, format_parts(turns, counted, hops, question, answer, read) | {"searches": float(run)}


def format_parts(turns: Sequence[str], run: int, hops: int, question: str, answer: str, read: str) -> dict[str, float]:
    """{"think", "tool", "answer", "format"}: format = (1 + think + tool + answer)/4, or 0 for a pair without question
    or answer, or whose question contains the answer. think: share of turns that begin with a closed thought. tool:
    min((1 + run)/hops, 1) for `run` searches; without any 1 for one hop, else 0. answer: of "yes", "no" or what stands
    in `read`, 1 up to five words, ½ up to ten; else 0."""
    think = sum(_THOUGHT.match(turn) is not None for turn in turns) / max(1, len(turns))
    tool = min((1 + run) / hops, 1.0) if run else float(hops == 1)
    bare = normalise(answer)
    words = len(bare.split()) if bare in ("yes", "no") or bare in normalise(read) else 0
    graded = 0.0 if words == 0 or words > 10 else 1.0 if words <= 5 else 0.5
    whole = question != "" and answer != "" and bare not in normalise(question)
    return {"think": think, "tool": tool, "answer": graded, "format": whole * (1 + think + tool + graded) / 4}


def difficulty(right: int, attempts: int) -> float:
    """(n − k)/(n − 1) for k right ones of n > 1 attempts, 0 for k = 0 and k = n: most for one right attempt."""
    return (attempts - right) / (attempts - 1) if 0 < right < attempts else 0.0


def answer_of(completion: Completion, whole: bool = False) -> str | None:
    """The last closed <answer>; without one None, or with `whole` the last turn."""
    said = searching.contents(completion)
    found = parsing.last(said, "answer")
    return said[-1].strip() if found is None and whole and said else found
