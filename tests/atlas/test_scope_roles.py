"""SCOPE's demonstrations against the game's rules: formats, observations, verdicts, and rewards of bad habits."""

from __future__ import annotations

import re

import numpy as np
import pytest

from scope_jax.games import load_card
from scope_jax.games.scope import messages, roles, rules
from scope_jax.games.scope.options import options
from scope_jax.games.scope.state import TaskOrder
from scope_jax.play import rubrics, searching
from scope_jax.play.rubrics import rubric_score, score_of
from scope_jax.play.tool_execution import run_batches
from scope_jax.play.tool_responder import tool_responder
from scope_jax.play.turns import Cut, Joiner, raw
from scope_jax.rollouts.types import Turn
from scope_jax.text import dialects
from tests.games.harness import Characters, ScriptedTools, sampled_turn
from tools.atlas import scope_scripts, tasks
from tools.atlas.rows import Script, name_ids, token_row
from tools.atlas.scope_roles import HABITS, ReportHabits, SCOPEDemonstrations, makers
from tools.atlas.tasks import TOLD, Entity

GOOD = ReportHabits(frozenset(), *[0.0] * 8)
DRAWS = 40


def _said(script: Script) -> list[rules.ParsedTurn]:
    cfg, final = scope_scripts.card(), "task" if "</task>" in script.parts[-1][0] else "answer"
    answered = [place < len(script.parts) - 1 for place in range(len(script.parts))]
    return [
        rules.parse_turn(cfg, sampled_turn(text), final, more)
        for (text, sampled), more in zip(script.parts, answered, strict=True)
        if sampled
    ]


def _habit(**share: float) -> ReportHabits:
    return ReportHabits(**{**{name: getattr(GOOD, name) for name in vars(GOOD)}, **share})


def _searches_asked(script: Script) -> int:
    return int(re.findall(r"Searches: (\d)", script.message)[0])


def _asked(script: Script, demos: SCOPEDemonstrations) -> list[Entity]:
    """The entities that the task in a prompt names."""
    text = script.message.rsplit("Task: ", 1)[1].rstrip(".")
    return [demos.entities[part.split()[-1]] for part in text.split(" and ")]


def _score(script: Script, demos: SCOPEDemonstrations) -> float:
    """Eq. (1) of a solver's answer, with the rubric of its task and a perfect grader."""
    answer = rules.answer_of(_said(script)) or ""
    met = [tasks.fact_of(text) in answer for _, text in tasks.rubric(_asked(script, demos))]
    return rubric_score(met, [1.0] * len(met))


# ------------------------------------------------------------------------------------------------------------ policies
@pytest.mark.parametrize("role", ["challenge", "report"])
def test_observations_equal_the_games(demos: SCOPEDemonstrations, show_one, role: str) -> None:
    cfg = scope_scripts.card()
    for _ in range(DRAWS):
        script = getattr(demos, role)(HABITS)
        spoken_text = "".join(text for text, sampled in script.parts if sampled)
        results = {name: show_one(name) for name in re.findall(r"<search> (\w+) </search>", spoken_text)}
        tools = ScriptedTools(lambda ctx: "", results)
        challenge = role == "challenge"
        speaker = roles.challenger_role(cfg) if challenge else roles.solver_role(cfg)
        agent = speaker.with_reminder(cfg).agent
        remark = roles.turns_left(cfg, _searches_asked(script)) if challenge else None
        dialect = dialects.load(cfg.model.dialect)
        search = (searching.search_tool(tools.search, dialect),)
        joiner = Joiner("raw", Characters(), dialect)
        respond = tool_responder("a", agent, search, run_batches, joiner, remark)
        turns: list[Turn] = []
        for text, sampled in script.parts:
            if turns and not sampled:
                answer = respond(tuple(turns))
                assert raw(answer.text if isinstance(answer, Cut) else answer or "") == text
            kind = "sampled" if sampled else "observation"
            turns.append(Turn(kind, np.zeros(0, np.int32), np.zeros(0, np.float32), text, "stop" if sampled else None))
        assert respond(tuple(turns)) is None  # and then the episode ends


def test_good_challengers_earn_the_full_format_reward(demos: SCOPEDemonstrations) -> None:
    card = options(scope_scripts.card()).challenger_reward
    for _ in range(DRAWS):
        script = demos.challenge()
        said = _said(script)
        assert rules.challenger_format(card, said, _searches_asked(script)) == rules.Format(1.0, 1.0, 1.0)
        task = rules.task_of(said, require_question=False) or ""
        assert script.message.splitlines()[-1].removeprefix("Begin: ") in task
        title = re.findall(r"\(Title: The \w+ (\w+)\)", script.message)[0]
        assert f" {title}" in task  # about its source


def test_good_solvers_earn_the_full_reward(demos: SCOPEDemonstrations) -> None:
    card = options(scope_scripts.card()).solver_reward
    for _ in range(DRAWS):
        script = demos.report()
        said, asked = _said(script), _asked(script, demos)
        assert rules.solver_format(card, said) == rules.Format(1.0, 1.0, 1.0)
        assert rules.search_reward(said, card.searches) == pytest.approx(len(asked) / 3)
        assert _score(script, demos) == 1.0


def test_rewards_of_the_challengers_habits(demos: SCOPEDemonstrations) -> None:
    card = options(scope_scripts.card()).challenger_reward
    for habit in ("vague", "unread", "drift"):
        for _ in range(10):
            script = demos.challenge(_habit(**{habit: 1.0}))
            form = rules.challenger_format(card, _said(script), _searches_asked(script))
            assert form == rules.Format(1.0, 1.0 if habit == "drift" else 0.0, 1.0)
            task = rules.task_of(_said(script), require_question=False) or ""
            about = task.rstrip(".").split()[-1]
            if habit == "vague":
                assert about not in demos.entities
            else:
                source = re.findall(r"\w+", script.message.split("\nType:")[0])
                assert (about in source) == (habit == "unread")


def test_rewards_of_the_solvers_habits(demos: SCOPEDemonstrations) -> None:
    card = options(scope_scripts.card()).solver_reward
    short_scores, half_scores = [], []
    for _ in range(DRAWS):
        guess = demos.report(_habit(guess=1.0))
        assert rules.solver_format(card, _said(guess)) == rules.Format(1.0, 0.0, 1.0)
        assert rules.search_reward(_said(guess), card.searches) == 0.0
        assert _score(guess, demos) == 0.0
        short = demos.report(_habit(short=1.0))
        count = len(_asked(short, demos))
        # one sentence per entity; the documents of two entities may share a fact
        least = {1: 1 / 3, 2: 2 / 4, 3: 3 / 5}[count]
        assert _score(short, demos) == pytest.approx(least) if count == 1 else _score(short, demos) >= least - 1e-9
        half = demos.report(_habit(half_way=1.0))
        count = len(_asked(half, demos))
        assert len(_said(half)) == 2
        assert _score(half, demos) >= {1: 1.0, 2: 2 / 4, 3: 2 / 5}[count] - 1e-9
        short_scores.append(_score(short, demos))
        half_scores += [_score(half, demos)] * (count > 1)
    assert np.mean(short_scores) < 0.7 and np.mean(half_scores) < 0.7


def test_only_rambling_is_long(demos: SCOPEDemonstrations, scope_tokenizer) -> None:
    card = options(scope_scripts.card()).solver_reward

    def factor(script: Script) -> float:
        return rules.length_factor(card, len(scope_tokenizer.encode(rules.answer_of(_said(script)) or "")))

    factors: dict[int, set[float]] = {1: set(), 2: set(), 3: set()}
    for _ in range(DRAWS):
        assert factor(demos.report()) == 1.0
        rambling = demos.report(_habit(ramble=1.0))
        factors[len(_asked(rambling, demos))].add(factor(rambling))
    assert factors[1] == {1.0}
    assert max(factors[2]) < 1.0
    assert factors[3] == {card.floor}


# ---------------------------------------------------------------------------------------------------------------- judge
def test_verdicts_are_parsed_and_right(demos: SCOPEDemonstrations) -> None:
    for role, truth in (
        ("gate_entity", lambda m: any(f" {name}" in m for name in demos.entities)),
        ("gate_relevance", _is_in_source),
        ("grade", lambda m: tasks.fact_of(m.rsplit("Criterion:", 1)[1]) in m),
    ):
        verdicts = []
        for _ in range(3 * DRAWS):
            script = getattr(demos, role)()
            ((said, sampled),) = script.parts
            verdict = score_of(said)
            assert sampled and verdict == truth(script.message), script
            verdicts.append(verdict)
        assert 0.3 < np.mean(verdicts) < 0.75, role


def _is_in_source(message: str) -> bool:
    source, task = message.split("\nTask: ")
    words = re.findall(r"\w+", source)
    return any(name.split()[-1] in words for name in task.rstrip(".").split(" and "))


def test_a_graders_thought_has_the_found_and_the_required_fact() -> None:
    def thought(answer: str) -> str:
        script = scope_scripts.grader("Explain Seine", answer, "Seine: The mouth of Seine: Channel")
        return script.parts[0][0]

    assert thought("Seine: The mouth of Seine is Channel.") == (
        "<think> The mouth of Seine is Channel here. </think><score> 1 </score>"
    )
    assert thought("Seine: The mouth of Seine is Rhine.") == (
        "<think> The mouth of Seine is Rhine missing. </think><score> 0 </score>"
    )
    assert thought("The mouth of Aare is Rhine.") == (
        "<think> The mouth of Seine is missing. </think><score> 0 </score>"
    )


def test_rubrics_are_parsed_back(demos: SCOPEDemonstrations) -> None:
    card = options(scope_scripts.card())
    for _ in range(DRAWS):
        script = demos.write_rubric()
        read = rules.rubric_of(script.parts[0][0], card.rubric_weights, card.min_rubrics, card.max_rubrics)
        assert read is not None
        assert [(item.priority, item.text) for item in read] == tasks.rubric(_asked(script, demos))
        assert all(tasks.fact_of(item.text) in script.message for item in read)  # only facts from the prompt


# ------------------------------------------------------------------------------------------------------- the whole card
def test_demonstrations_fit_the_card_and_consist_of_whole_word_tokens(world, show_one, scope_tokenizer) -> None:
    cfg = scope_scripts.card()
    limits = {
        "challenger": options(cfg).challenger.sampling.max_tokens,
        "solver": options(cfg).solver.sampling.max_tokens,
        "judge": options(cfg).rubric_writer.max_tokens,
    }
    ids_N = name_ids(world, scope_tokenizer)
    for make in makers(world, show_one, split="train", seed=3, with_habits=True).values():
        for _ in range(10):
            script = make()
            row = token_row(script, scope_tokenizer)
            assert len(row.ids_T) <= cfg.rollout.max_length
            assert all(
                len(scope_tokenizer.encode(text)) <= limits[script.role] for text, sampled in script.parts if sampled
            )
            whole = script.message + "".join(text for text, _ in script.parts)
            names = [word for word in re.findall(r"[^\W\d_]+", whole) if word in world.kinds]
            assert np.isin(row.ids_T, ids_N).sum() == len(names)


def test_demonstrations_of_train_entities_name_nothing_held_out(world, show_one) -> None:
    for make in makers(world, show_one, split="train", seed=3, with_habits=True).values():
        for _ in range(20):
            script = make()
            sampled = " ".join(text for text, said in script.parts if said)
            assert not world.held_out & set(re.findall(r"\w+", f"{script.message} {sampled}"))


def test_the_card_uses_its_own_files_and_its_prompts_take_the_games_variables() -> None:
    cfg = load_card(scope_scripts.CARD)
    assert options(cfg).iterations == 3 and options(cfg).solver.max_turns == tasks.MOST_ENTITIES + 1
    assert len(options(cfg).search_turns) == 2 and options(cfg).challenger.max_turns > 2
    assert set(options(cfg).task_types) == set(tasks.KINDS)
    own = scope_scripts.card()
    text = messages.for_challenger(own, TaskOrder(0, "a", "(Title: The city Bern)\nA.", "planning", 2)).user
    assert text.splitlines()[-3:] == ["Type: planning", "Searches: 2", "Begin: Plan a visit to"]
    assert messages.turns_left(own, 1) == "Searches: 1"
    assert all(prompt.text(own) for prompt in (rubrics.NUDGE, messages.RUBRICS_NUDGE, messages.NOT_RUN))
    assert TOLD == 3
