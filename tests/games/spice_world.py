"""SPICE for golden transcripts: one-word documents, tasks about them, scripted answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from scope_jax.config import Config
from scope_jax.games import parse_config
from tests.games.harness import ScriptedTools, TurnContext

DOCUMENTS = [{"id": name.lower(), "title": "", "text": f"On {name}."} for name in ("Aare", "Bern", "Cusco")]


def card(*, seed: int = 0, **spice: Any) -> Config:
    """A small card: 4 attempts of a round are kept, K = 4; `data`, `train` and the roles may be changed."""
    data, train = spice.pop("data", {}), spice.pop("train_table", {})
    roles = {
        name: {"samples": 4, "max_prompt_tokens": 20_000} | spice.pop(name, {}) for name in ("challenger", "reasoner")
    }
    table = {
        "system": "spice",
        "seed": seed,
        "model": {"checkpoint": "none"},
        "data": {"documents": "none"} | data,
        "train": {"steps": 1, "batch_size": 3} | train,
        "spice": {"attempts_per_round": 4, "max_attempts": 8} | roles | spice,
    }
    return parse_config(table, "the test's card")


def chosen(kind: str | None) -> str:
    """A reply of the first stage; None: multiple choice."""
    flags = {"suitable_for_mcq": kind is None, "suitable_for_free_form": kind is not None}
    return json.dumps(flags | {"best_answer_type": kind, "reason": "so"})


def options(question: str, letter: str = "B") -> str:
    """A multiple-choice task of the second stage."""
    text = f"{question}\nA) 1\nB) 2\nC) 3\nD) 4"
    return "Hm.\n" + json.dumps({"multiple_choice_question": text, "multiple_choice_correct": letter})


def open_task(question: str, answer: Any, kind: str = "Integer") -> str:
    """A free-form task of the second stage."""
    return "Hm.\n" + json.dumps({"question": question, "answer": answer, "answer_type": kind})


@dataclass
class Plan:
    """Who says what: `attempts` by document and number, (first stage, second stage); `answers` by a word of the task,
    those of its K samples. Without a word about it a document's attempts all pose "How many in <document>?", and
    the answer 7 is right in the first half of the samples."""

    attempts: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, ctx: TurnContext) -> str:
        if ctx.role == "reasoner":
            said = next((own for word, own in self.answers.items() if word in ctx.prompt), None)
            return said[ctx.sample] if said else rf"I count. \boxed{{{7 if ctx.sample < 2 else 8}}}"
        place, stage, number = ctx.name.split()
        name = DOCUMENTS[int(place)]["text"].removeprefix("On ").removesuffix(".")
        attempt = int(number) + (ctx.sample if stage == "format" else 0)
        usual = chosen("Integer"), open_task(f"How many in {name}?", 7)
        first, second = self.attempts.get((name, attempt), usual)
        return first if stage == "format" else second


def world(plan: Any = None, **changes: Any) -> ScriptedTools:
    return ScriptedTools(plan or Plan(), data=changes.pop("data", DOCUMENTS), **changes)
