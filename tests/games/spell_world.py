"""SPELL for golden transcripts: clusters of documents and scripted replies. One character is one token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scope_jax.config import Config
from scope_jax.games import parse_config
from tests.games.harness import ScriptedTools, TurnContext

LONG = {"max_prompt_tokens": 20_000}  # a prompt in characters


def card(
    *, seed: int = 0, judge_table: Mapping[str, Any] | None = None, questions: str | None = None, **spell: Any
) -> Config:
    """A small card: two groups a step, four answers and four judgments; `spell` goes into its [spell] table.

    questions: a file of given questions in place of the clusters.
    """
    roles = {
        "questioner": LONG | spell.pop("questioner", {}),
        "responder": LONG | {"samples": 4} | spell.pop("responder", {}),
        "verifier": LONG | {"samples": 4} | spell.pop("verifier", {}),
    }
    small = {"groups": 2, "clusters_per_round": 4, "max_rounds": 3, "documents": 2, "max_answer_tokens": 40}
    table = {
        "system": "spell",
        "seed": seed,
        "model": {"checkpoint": "none"},
        "data": {"questions": questions} if questions else {"clusters": "none"},
        "train": {"steps": 1},
        "spell": small | roles | spell,
        **({"judge": dict(judge_table)} if judge_table else {}),
    }
    return parse_config(table, "the test's card")


def cluster(key: str, family: str | None, documents: int = 4) -> dict[str, Any]:
    """A cluster of short documents, each of which contains its own name."""
    made = [{"id": f"{key}{n}", "title": f"{key} {n}", "text": f"Facts {n} of {key}."} for n in range(documents)]
    return {"id": key, "family": family, "documents": made}


CLUSTERS = [cluster("Oslo", "qa"), cluster("Lima", "math"), cluster("Kyiv", "choice"), cluster("Bonn", "qa")]


def asked(question: str, answer: Any, **more: Any) -> str:
    """A valid output of the questioner."""
    return f"Step by step.\n```json\n{json.dumps({'question': question, 'answer': answer, **more})}\n```"


OPTIONS = {"A": "in May", "B": "in June", "C": "in July", "D": "never"}
YES, NO = "Explanation: the same.\nDecision: [[YES]]", "Explanation: not the same.\nDecision: [[NO]]"


@dataclass
class Plan:
    """Who says what; without a word about it no question is written, and nothing is answered rightly.

    questions: by place in the stream. blind, answers: by words of the question. judgments: by words of the answer.
    """

    questions: Mapping[int, str]
    blind: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)  # one per sample
    judgments: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __call__(self, ctx: TurnContext) -> str:
        prompt = ctx.prompt
        match ctx.role:
            case "questioner":
                return self.questions.get(int(ctx.name), "I cannot.")
            case "grounding":
                return _found(self.blind, prompt, "I do not know.")
            case "responder":
                return _found(self.answers, prompt, ("I do not know.",) * 9)[ctx.sample]
            case _:
                given = prompt.partition("Answer 1:")[2].partition("Answer 2:")[0]
                return _found(self.judgments, given, (NO,) * 9)[ctx.sample]


def _found(table: Mapping[str, Any], text: str, otherwise: Any) -> Any:
    return next((value for key, value in table.items() if key in text), otherwise)


UNSURE = "I am not sure."
# The first round gives one question that some answers solve, the second two more: one too many.
PLAN = Plan(
    questions={
        0: asked("Who built the port?", "Ada Berg"),
        1: asked("How much is it?", "a lot"),
        2: asked("When did it open?", "B", options=OPTIONS),
        3: asked("Who came first?", "the Romans"),
        5: asked("What is the growth in per cent?", "12.5"),
        6: asked("When did it close?", "C", options=OPTIONS),
        7: asked("Who came last?", "nobody"),
    },
    blind={"Who came first?": "The correct answer is the Romans.", "When did it open?": "The correct answer is D"},
    answers={
        "Who built the port?": (
            "The correct answer is Ada Berg.",
            "The correct answer is A. Berg, engineer.",
            "The correct answer is Olaf.",
            "Nobody knows.",
        ),
        "When did it open?": ("The correct answer is (B).",) * 4,
        "What is the growth": (
            "Therefore, the answer is 12.5%.",
            "Therefore, the answer is -12.5.",
            "Therefore, the answer is 12.51",
            "Therefore, the answer is **12.5**.",
        ),
        "When did it close?": ("The correct answer is C", *["The correct answer is A"] * 3),
    },
    judgments={
        "Ada Berg": (YES, YES, YES, NO),
        "A. Berg": (YES, YES, YES, YES),
        "Olaf": (YES, YES, NO, NO),
        "-12.5": (NO, NO, NO, UNSURE),
        "12.51": (YES, NO, YES, YES),
        "12.5": (YES, YES, YES, YES),
        "(B)": (YES, YES, YES, YES),
    },
)


def world(plan: Plan = PLAN, clusters: Sequence[Mapping[str, Any]] = CLUSTERS, **more: Any) -> ScriptedTools:
    return ScriptedTools(script=plan, data=clusters, **more)
