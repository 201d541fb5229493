"""SPICE's demonstrations against the game's rules: formats, tasks, answers, and the effect of bad habits."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from scope_jax.games import GAMES
from scope_jax.games.spice import rules
from scope_jax.games.spice.options import options
from scope_jax.games.spice.state import ReasonerTask
from scope_jax.grading.math_answers import Comparison, MathAnswers
from scope_jax.text import parsing
from tests.games.harness import ScriptedTools, TurnContext, play_step
from tools.atlas import spice_scripts
from tools.atlas.facts import ASSETS, World, load_numbers
from tools.atlas.problems import KINDS_OF, LEAST_PREMISES
from tools.atlas.rows import Script
from tools.atlas.spice_roles import HABITS, KINDS, ProblemHabits, SPICEDemonstrations

DRAWS = 16
GOOD = ProblemHabits(*[0.0] * 11)
CFG = spice_scripts.card()
STATED = re.compile(r"The (\w+) of (\w+) is (\w+)\.")
QUESTION = re.compile(r"What is (.+)\?$")


@pytest.fixture(scope="module")
def demos(world: World) -> SPICEDemonstrations:
    """Demonstrations about train names only."""
    return SPICEDemonstrations(world, "train", seed=3, documents=60)


@pytest.fixture(scope="module")
def answers():
    made = MathAnswers()
    yield made
    made.close()


def _said(script: Script) -> str:
    return "".join(text for text, _ in script.parts)


def _right(task: ReasonerTask, prediction: str | None, answers: MathAnswers) -> bool:
    (verdict,) = answers.verdicts([Comparison(prediction or "", (task.answer,))])
    return rules.right(task, prediction, verdict if rules.needs_mathematics(task, prediction) else None)


def _habit(**share: float) -> ProblemHabits:
    return replace(GOOD, **share)


def _solved(question: str) -> str:
    """The answer to a question from its own premises, resolved from the innermost phrase outwards."""
    facts = {(attribute, entity): value for attribute, entity, value in STATED.findall(question)}
    (asked,) = QUESTION.findall(question)
    values = []
    for phrase in asked.split(" minus "):
        *attributes, name = phrase.removeprefix("the ").replace(" of the ", " of ").split(" of ")
        for attribute in reversed(attributes):
            name = facts[attribute, name]
        values.append(name)
    return " - ".join(values)


def _task(script: Script, kind: str) -> tuple[ReasonerTask | None, str]:
    return rules.task_of(_said(script), kind, options(CFG).max_answer_words)


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("kind", KINDS_OF)
def test_good_challengers_write_valid_tasks_that_their_premises_solve(
    demos: SPICEDemonstrations, kind: str, seen: bool
) -> None:
    for _ in range(DRAWS):
        script = demos.write(kind if seen else None)
        kind = kind if seen else script.message.rsplit(" ", 1)[1].lower()
        task, reason = _task(script, kind)
        assert task is not None, reason
        assert _solved(task.question) == task.answer
        premises = [match.group() for match in STATED.finditer(task.question)]
        assert len(set(premises)) == len(premises) >= LEAST_PREMISES
        assert not seen or all(sentence in script.message for sentence in premises)
        assert rules.format_of(options(CFG), _said(demos.choose(seen)))[0] in KINDS_OF


@pytest.mark.parametrize(
    ("habit", "reason"),
    [("listed", "no_answer"), ("empty", "no_question"), ("mistyped", "answer_type")],
)
def test_a_malformed_task_is_rejected(demos: SPICEDemonstrations, habit: str, reason: str) -> None:
    for kind in KINDS_OF:
        for _ in range(5):
            assert _task(demos.write(kind, _habit(**{habit: 1.0})), kind) == (None, reason)


def test_formats_with_both_flags_or_none_are_rejected(demos: SPICEDemonstrations) -> None:
    replies = {_said(demos.choose(habits=_habit(flags=1.0))) for _ in range(DRAWS)}
    assert {json.loads(reply)["suitable_for_mcq"] for reply in replies} == {True, False}
    assert {rules.format_of(options(CFG), reply) for reply in replies} == {("", "format_flags")}


def test_the_habits_lazy_and_wrong_of_a_challenger(demos: SPICEDemonstrations) -> None:
    for _ in range(DRAWS):
        lazy, wrong = (demos.write("string", _habit(**{habit: 1.0})) for habit in ("lazy", "wrong"))
        task, _ = _task(lazy, "string")
        assert task is not None and QUESTION.findall(task.question)[0].count(" of ") == 1
        task, _ = _task(wrong, "string")
        assert task is not None and _solved(task.question) != task.answer


@pytest.mark.parametrize("kind", KINDS)
def test_good_reasoners_are_right_and_bad_habits_are_wrong(
    demos: SPICEDemonstrations, answers: MathAnswers, kind: str
) -> None:
    cfg_kind = {"number": "integer", "difference": "expression"}.get(kind, "string")

    def rewarded(script: Script) -> bool:
        question = script.message.removeprefix("Solve: ")
        return _right(ReasonerTask(cfg_kind, question, _solved(question)), parsing.boxed(_said(script)), answers)

    assert all(rewarded(demos.solve(kind)) for _ in range(DRAWS))
    bad = {"two hops": "half_way", "three hops": "half_way", "difference": "reversed"}.get(kind, "unboxed")
    assert not any(rewarded(demos.solve(kind, _habit(**{bad: 1.0}))) for _ in range(5))
    assert kind != "difference" or not rewarded(demos.solve(kind, _habit(first=1.0)))
    guesses = [demos.solve(kind, _habit(guess=1.0)) for _ in range(DRAWS)]
    assert all(_said(script).startswith("I know this.") for script in guesses)
    assert sum(map(rewarded, guesses)) <= (0 if kind == "difference" else DRAWS // 2)


def test_differences_are_graded_by_value_including_the_sign(answers: MathAnswers) -> None:
    task = ReasonerTask("expression", "What is the length of Nile minus the length of Seine?", "6650 - 777")
    said = {"6650 - 777": True, "5873": True, "777 - 6650": False, "6650": False, "-5873": False}
    assert {answer: _right(task, answer, answers) for answer in said} == said


# --------------------------------------------------------------------------------------------------------------- worlds
def test_true_world_rows_and_documents_show_no_held_out_name(world: World, demos: SPICEDemonstrations) -> None:
    scripts = [demos.solve(kind, HABITS) for kind in KINDS for _ in range(DRAWS)]
    scripts += [demos.write(kind, HABITS) for kind in (*KINDS_OF, None) for _ in range(DRAWS)]
    texts = [f"{script.message} {_said(script)}" for script in (*scripts, demos.choose())]
    texts += (ASSETS / "spice" / "documents.jsonl").read_text(encoding="utf-8").splitlines()
    assert not world.held_out & {word for text in texts for word in re.findall(r"\w+", text)}


def test_the_exam_asks_only_about_held_out_names_and_states_its_premises(world: World) -> None:
    rows = [json.loads(line) for line in (ASSETS / "spice" / "questions_held_out.jsonl").read_text().splitlines()]
    true = {fact.sentence for fact in (*world.facts, *load_numbers(world))}
    assert {row["kind"] for row in rows} == set(KINDS) and len(rows) > 590
    for row in rows:
        stated = list(STATED.finditer(row["question"]))
        assert all(match[2] in world.held_out and match.group() in true for match in stated)
        assert row["answers"] == [_solved(row["question"])]


def test_numbers_are_changed_if_nothing_may_be_memorised(world: World) -> None:
    true = {fact.sentence for fact in load_numbers(world)}

    def known(split) -> float:
        script = SPICEDemonstrations(world, split, seed=0, documents=3).write("integer").message
        stated = [match.group() for match in STATED.finditer(script) if match[3].isdecimal()]
        return float(np.mean([sentence in true for sentence in stated]))

    assert known("train") == known("held_out") == 1.0
    assert known("all") < 1.0


def test_a_step_uses_the_prompts_of_the_demonstrations(demos: SPICEDemonstrations) -> None:
    """Challengers as demonstrated, and every second reasoner guesses: valid tasks, half of the answers right."""

    def say(ctx: TurnContext) -> str:
        if ctx.role == "challenger":
            kind = ctx.prompt.rsplit("Type: ", 1)[1].lower() if "Type: " in ctx.prompt else ""
            return _said(demos.write(kind) if kind else demos.choose())
        right = _solved(ctx.prompt.removeprefix("Solve: "))
        return rf"\boxed{{ {right}}}" if ctx.sample % 2 else r"I know this. \boxed{ Nowhere}"

    long = ("max_prompt_tokens", "sampling.max_tokens", "sampling.max_response_tokens")
    changes = {f"{role}.{key}": 9_000 for role in ("challenger", "reasoner") for key in long}
    cfg = spice_scripts.load_card(
        spice_scripts.CARD,
        [
            f"spice.prompts={spice_scripts.PROMPTS}",
            "spice.document_tokens=5000",
            *(f"spice.{key}={value}" for key, value in changes.items()),
        ],
    )
    rows = [json.loads(line) for line in (ASSETS / "spice" / "documents.jsonl").read_text().splitlines()[:8]]
    game = GAMES["spice"]
    episodes, _, metrics = play_step(game, cfg, ScriptedTools(say, data=rows), game.start(cfg), rows, 0)
    assert metrics["challenger/valid"] == metrics["challenger/documents"] == 1.0
    assert metrics["challenger/pass_rate"] == metrics["reasoner/reward"] == 0.5
    assert {episode.reward for episode in episodes if episode.role == "challenger"} == {1.0}


def test_habits_are_probabilities() -> None:
    assert all(0 < getattr(HABITS, name) < 1 for name in vars(HABITS))
