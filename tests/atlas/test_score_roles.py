"""SCORE's demonstrations under the game's own parsers and rules, and its sets of queries."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest

from scope_jax.data.rows import Row
from scope_jax.data.sources import load
from scope_jax.games import load_card, score
from scope_jax.games.score import meta_harness, rules
from scope_jax.games.score.options import options
from scope_jax.games.score.state import Constraints, Rubric
from scope_jax.grading import measures
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.game import play_step
from scope_jax.play.rubrics import score_of
from scope_jax.text import parsing
from tests.games.harness import ScriptedTools, TurnContext
from tools.atlas import score_scripts
from tools.atlas.facts import ASSETS, World
from tools.atlas.queries import NUMBERS, SET_SIZES, Asked
from tools.atlas.rows import Script, Show, name_ids, token_row
from tools.atlas.score_roles import Habits, SCOREDemonstrations, makers
from tools.atlas.score_scripts import Claim, Written

DRAWS = 40
LENGTHS = ("max_prompt_tokens", "sampling.max_tokens", "sampling.max_response_tokens")
GOOD = Habits(0.0, (0.0, 0.0), 0.0, (0.0, 0.0), (0.0, 0.0), 0.0, 0.0, 0.0)
CLAIM = re.compile(r"(?:first|second|third) the (\w+) of (\w+): (\w+) as (\w+) (?:says|know)\.")
ASKED = re.compile(r"(?:first|second|third) the (\w+) of (\w+)")


@pytest.fixture(scope="module")
def tokens() -> Tokenizer:
    return Tokenizer.load(ASSETS / "score" / "tokenizer")


@pytest.fixture
def demos(world: World, show_one: Show) -> SCOREDemonstrations:
    """Demonstrations of train names alone; the search is as in SCORE's card."""
    return SCOREDemonstrations(world, show_one, "train", seed=3)


def queries_of_the_card() -> Sequence[Row]:
    source = score.GAME.rows(load_card(score_scripts.CARD))
    assert source is not None
    return load(source)


def _habit(**share: object) -> Habits:
    return Habits(**{**vars(GOOD), **share})


def _said(script: Script) -> str:
    return script.parts[-1][0]


def _report(script: Script) -> str:
    text = parsing.last([_said(script)], "answer")
    assert text is not None
    return text


def _asked(message: str) -> list[tuple[str, str]]:
    return ASKED.findall(message.split("Query: ")[1].split("\n")[0])


def _true(world: World) -> dict[tuple[str, str], str]:
    return {(fact.attribute, fact.entity): fact.value for fact in world.facts}


def _searches(script: Script) -> int:
    return sum(not sampled for _, sampled in script.parts)


# --------------------------------------------------------------------------------------------------------------- solver
def test_a_good_report_states_every_fact_with_its_source_and_concludes(
    world: World, demos: SCOREDemonstrations
) -> None:
    true = _true(world)
    for _ in range(DRAWS):
        script = demos.report()
        asked, text = _asked(script.message), _report(script)
        assert CLAIM.findall(text) == [(*fact, true[fact], fact[1]) for fact in asked]
        assert rules.conclusion_of(text, "section") == ", ".join(true[fact] for fact in asked) + "."
        observed = "".join(part for part, sampled in script.parts if not sampled)
        assert all(f"The {attribute} of {name} is {true[attribute, name]}." in observed for attribute, name in asked)
        assert _searches(script) == len({name for _, name in asked}) == 2


def test_each_bad_habit_is_what_it_says(world: World, demos: SCOREDemonstrations) -> None:
    true = _true(world)
    right = []
    for _ in range(DRAWS):
        guess = demos.report(_habit(guess=1.0))
        right += [true[claim[:2]] == claim[2] for claim in CLAIM.findall(_report(guess))]
        assert _searches(guess) == 0 and len(CLAIM.findall(_report(guess))) == len(NUMBERS)
        half = demos.report(_habit(half_way=(1.0, 1.0)))
        assert _searches(half) == 1 and 1 <= len(CLAIM.findall(_report(half))) < len(NUMBERS)
        invented = demos.report(_habit(half_way=(1.0, 1.0), invent=1.0))
        claims = CLAIM.findall(_report(invented))
        assert _searches(invented) == 1 and len(claims) == len(NUMBERS) and claims[-1][3] == score_scripts.OWN
        uncited = CLAIM.findall(_report(demos.report(_habit(uncited=(1.0, 1.0)))))
        assert [claim[3] for claim in uncited] == [score_scripts.OWN] * len(NUMBERS)
        assert "Conclusion" not in _report(demos.report(_habit(open_ended=(1.0, 1.0))))
    assert sum(right) / len(right) < 0.25


def test_solvers_heed_the_rubric(demos: SCOREDemonstrations) -> None:
    heeding = _habit(half_way=(1.0, 0.0), uncited=(1.0, 0.0), open_ended=(1.0, 0.0))
    seen = set()
    for _ in range(DRAWS):
        script = demos.report(heeding)
        named = {name: f"- {name} (" in script.message for name in ("completeness", "coherence")}
        assert (_searches(script) == 2) == named["completeness"]
        assert ("Conclusion" in _report(script)) == named["coherence"]
        seen.add(tuple(named.values()))
    assert len(seen) == 4


# ------------------------------------------------------------------------------------------------------------ evaluator
def _rubric(message: str) -> Rubric:
    weights = {name: float(weight) for name, weight in re.findall(r"- (\w+) \(weight ([\d.]+)\)", message)}
    return Rubric("factuality", weights)


def test_assessments_are_valid_and_count_what_the_report_says(world: World, demos: SCOREDemonstrations) -> None:
    true, card = _true(world), score_scripts.card()
    seen: set[float] = set()
    for _ in range(2 * DRAWS):
        script = demos.assess()
        claims = CLAIM.findall(script.message)
        holding = [claim for claim in claims if true[claim[:2]] == claim[2]]
        points = {
            "factuality": len(holding),
            "citation_effectiveness": sum(claim[3] != score_scripts.OWN for claim in holding),
            "completeness": len(claims),
            "coherence": len(NUMBERS) * ("Conclusion" in script.message),
        }
        rubric = _rubric(script.message)
        found = rules.assessments_of(_said(script), 1, rubric, options(card).max_score)
        assert found is not None and found[0].scores == {name: points[name] for name in rubric.dimensions}
        assert not rules.unmet(found[0], _searches(script), meta_harness.default(card), options(card).min_depth)
        cited = {claim[3] for claim in claims} - {score_scripts.OWN}
        supported = {claim[3] for claim in holding} & cited
        assert found[0].citations == {
            "supported": len(supported),
            "unsupported": len(cited - supported),
            "unknown": 0,
        }
        seen.add(points["factuality"])
    assert seen == {0, 1, 2, 3}


def test_good_rubrics_are_valid_and_bad_ones_are_malformed(demos: SCOREDemonstrations) -> None:
    plain = meta_harness.default(score_scripts.card()).plain()

    def read(script: Script) -> tuple[Rubric | None, str, str]:
        others = re.findall(r"Choose (\d) more", script.message)[0]
        plain["dimension_constraints"]["k"] = int(others) + 1
        include = re.findall(r"Include: (\w+)", script.message)[0]
        return *rules.rubric_of(_said(script), meta_harness.validate(score_scripts.card(), plain)), include

    for _ in range(DRAWS):
        rubric, reason, include = read(demos.write_rubric())
        assert rubric is not None, reason
        assert include == "none" or include in rubric.weights
        assert read(demos.write_rubric(_habit(few=1.0)))[1] == "dimension_count"
        many = read(demos.write_rubric(_habit(many=1.0)))
        assert many[1] == "dimension_count" or (many[0] is not None and len(many[0].weights) == len(demos.pool))
        assert read(demos.write_rubric(_habit(heavy=1.0)))[1] == "weight"


def test_the_exams_verdict_is_that_of_the_rule(demos: SCOREDemonstrations) -> None:
    verdicts = set()
    for _ in range(DRAWS):
        script = demos.grade()
        answer, criterion = (
            script.message.removesuffix(" here?").removeprefix("Grade.\nAnswer: ").split("\nCriterion: ")
        )
        phrase, value = criterion.split(" is ")
        verdict = score_of(_said(script))
        assert verdict == measures.states(answer, f"{phrase}:", value)
        verdicts.add(verdict)
    assert verdicts == {True, False}


# -------------------------------------------------------------------------------------------------------------- a step
class Players:
    """All roles play well, but every second report of a query has only its first claim."""

    def __init__(self, world: World, demos: SCOREDemonstrations) -> None:
        self.facts = {(fact.attribute, fact.entity): fact for fact in world.facts}
        self.demos = demos

    def __call__(self, moment: TurnContext) -> str:
        script = self._script(moment)
        assert script.message == moment.prompt
        return [text for text, sampled in script.parts if sampled][moment.turn]

    def _script(self, moment: TurnContext) -> Script:
        prompt = moment.prompt
        first, second, third = (self.facts[fact] for fact in _asked(prompt))
        asked = Asked(prompt.split("Query: ")[1].split(" first")[0], (first, second, third))
        if moment.role == "rubric":
            chosen = [("factuality", None), ("completeness", "0.5"), ("coherence", "0.2")]
            return score_scripts.rubric_writer(asked, Constraints((), (), ()), 3, chosen)
        if moment.role == "solver":
            claims = [Claim(place, fact.value, fact.entity) for place, fact in enumerate(asked.facts)]
            written = Written(asked, tuple(claims[: 1 if moment.sample % 2 else 3]))
            return score_scripts.solver(written, _rubric(prompt), 2, self.demos.show)
        claims = [Claim(place, value, source) for place, (_, _, value, source) in enumerate(CLAIM.findall(prompt))]
        return score_scripts.assessor(Written(asked, tuple(claims)), _rubric(prompt), 1, self.demos.show)


def test_a_step_is_played_in_the_demonstrations_words(world: World, demos: SCOREDemonstrations) -> None:
    rows = list(queries_of_the_card())[:2]
    names = {name for row in rows for _, name in ASKED.findall(row["question"])}
    limits = [f"score.{role}.{key}=10000" for role in ("solver", "evaluator") for key in LENGTHS]
    changes = [f"score.prompts={score_scripts.PROMPTS}", "score.solver.samples=2", "train.batch_size=2", *limits]
    cfg = load_card(score_scripts.CARD, changes)
    results = {name: demos.show(name) for name in names}
    tools = ScriptedTools(Players(world, demos), results, data=rows, dialect="observation")
    episodes, _, metrics = play_step(score.GAME, cfg, tools, score.GAME.start(cfg), 0)
    assert metrics["evaluator/valid"] == metrics["solver/assessed"] == metrics["evaluator/citations_supported"] == 1.0
    # a · (1 + Σ w s) by hand: all facts, or one of three
    expected = [1 + 0.5 + 0.2, (1 + 0.5 / 3 + 0.2) / 3]
    rewards = [episode.reward for episode in episodes if episode.role == "solver"]
    assert rewards == pytest.approx(2 * expected)


# ---------------------------------------------------------------------------------------------------- the world's files
def test_the_exam_asks_about_held_out_names_and_self_play_about_none(world: World) -> None:
    true = _true(world)
    lines = (ASSETS / "score" / "queries_held_out.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len({row["question"] for row in rows}) == len(rows) == SET_SIZES["held_out"]
    for row in rows:
        asked = ASKED.findall(row["question"])
        assert {name for _, name in asked} <= world.held_out and len({name for _, name in asked}) == 2
        assert [item["fact"] for item in row["rubric"]] == [[f"the {a} of {n}:", true[a, n]] for a, n in asked]
    trained = list(queries_of_the_card())
    assert len({row["question"] for row in trained}) == SET_SIZES["train"]
    assert not world.held_out & set(re.findall(r"\w+", json.dumps(trained)))


def test_demonstrations_fit_the_card_and_name_nothing_held_out(world: World, tokens: Tokenizer, show_one: Show) -> None:
    card = options(score_scripts.card())
    limits = {"solver": card.solver, "scoring": card.evaluator, "evaluator": card.evaluator}
    ids_N = name_ids(world, tokens)
    for make in makers(world, show_one, split="train", seed=3, with_habits=True).values():
        for _ in range(30):
            script = make()
            row = token_row(script, tokens)
            text = script.message + "".join(part for part, _ in script.parts)
            words = re.findall(r"[^\W\d_]+", text)
            assert np.isin(row.ids_T, ids_N).sum() == sum(word in world.kinds for word in words)
            assert not world.held_out & set(words)
            if script.role in limits:
                prompt = int(row.sampled_T.argmax())
                assert prompt <= limits[script.role].max_prompt_tokens
                assert len(row.ids_T) - prompt <= limits[script.role].sampling.max_response_tokens
