"""A card's limits on prompts and responses, in SSP and SCOPE: what they end, and what is counted."""

from __future__ import annotations

import pytest

from scope_jax.games import GAMES, load_card, scope
from scope_jax.games.scope import messages as of_scope
from scope_jax.games.scope.options import ScopeSection
from scope_jax.games.ssp import messages
from scope_jax.games.ssp.options import SSPSection
from tests.games import harness, scope_world
from tests.games.harness import play_step
from tests.games.scope_world import DOCUMENTS, answer, searching_turn, task

LONG_TASK = "Tell of Bern. " * 30


def step_of_ssp(**roles):
    tools = harness.world()
    episodes, _, metrics = play_step(GAMES["ssp"], harness.card(**roles), tools, {"pool": []}, harness.ITEMS, 0)
    return episodes, metrics


def step_of_scope(plan=None, **changes):
    cfg, tools = scope_world.card(**changes), scope_world.world(plan)
    episodes, _, metrics = play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), DOCUMENTS, 0)
    return episodes, metrics


def test_the_proposers_response_limit_covers_the_whole_episode():
    """Searches and their results count; if no room is left for the question, there is none."""
    free, counted = step_of_ssp()
    longest = max(len(e.datums[0].ids_T) - len(e.text["prompt"]) for e in harness.episodes_of(free, "proposer"))
    said = max(int(e.datums[0].sampled_T.sum()) for e in harness.episodes_of(free, "proposer"))
    assert said < longest - 100 and counted["proposer/cut_off"] == 0
    same, metrics = step_of_ssp(proposer={"sampling": {"max_response_tokens": longest}})
    assert harness.plain(same) == harness.plain(free) and metrics == counted
    cut, metrics = step_of_ssp(proposer={"sampling": {"max_response_tokens": said}})
    assert metrics["proposer/cut_off"] == 1 and metrics["proposer/rejected_no_question"] == 1
    for episode in harness.episodes_of(cut, "proposer"):
        (datum,) = episode.datums
        assert len(datum.ids_T) - len(episode.text["prompt"]) <= said


def test_prompts_that_are_too_long_are_not_played_and_counted():
    episodes, metrics = step_of_ssp(proposer={"max_prompt_tokens": 100})
    assert metrics["proposer/prompt_too_long"] == 1 and "proposer/cut_off" not in metrics
    assert metrics["proposer/rejected_no_question"] == 1 and metrics["slots/dummy"] == 1
    assert all(not e.datums[0].sampled_T.any() and e.reward == 0 for e in harness.episodes_of(episodes, "proposer"))


def test_a_question_that_the_solver_cannot_be_asked_earns_nothing():
    """Also without verification: unanswered, it would earn the proposer 1."""
    lengths = {}
    for item in range(4):
        question = harness.question_about(item)
        lengths[question] = len(messages.for_solver(harness.card(), question).text)
    limit = max(lengths.values()) - 1
    episodes, metrics = step_of_ssp(solver={"max_prompt_tokens": limit}, verify="off", fill="dummy")
    long = {question for question, tokens in lengths.items() if tokens > limit}
    rewards = {e.text["question"]: e.reward for e in harness.episodes_of(episodes, "proposer")}
    assert 0 < len(long) < 4 and rewards == {question: 0 if question in long else 0.5 for question in lengths}
    assert {e.text["rejected"] for e in harness.episodes_of(episodes, "proposer")} == {"", "too_long"}
    assert metrics["proposer/rejected_too_long"] == metrics["slots/dummy"] == len(long) / 4
    assert metrics["solver/prompt_too_long"] == 0


def test_verification_prompts_have_the_solvers_limit():
    """The solver does the verification, so its prompt may be as long as the solver's."""

    def played(**roles):
        tools = harness.world()
        tools.results = {river: f"{text} {'It is long. ' * 40}" for river, text in harness.RESULTS.items()}
        return tools, play_step(GAMES["ssp"], harness.card(**roles), tools, {"pool": []}, harness.ITEMS, 0)[2]

    tools, metrics = played()
    lengths = sorted(len(text) for (role, _), text in tools.prompts.items() if role == "verify")
    assert metrics["proposer/rejected_materials_too_long"] == 0 and lengths[0] < lengths[-1]
    _, metrics = played(solver={"max_prompt_tokens": lengths[-1] - 1})
    assert metrics["proposer/rejected_materials_too_long"] == lengths.count(lengths[-1]) / len(lengths)


def test_a_task_that_is_too_long_is_not_attempted_and_not_kept():
    drafts = {
        ("Bern", 0): (searching_turn("Aare"), task(LONG_TASK)),
        ("Bern", 1): (searching_turn("Aare"), task("Tell.")),
    }
    plan = scope_world.Plan(drafts=drafts, attempts={("Tell", 0): (answer("alpha"),)})
    limit = len(of_scope.for_solver(scope_world.card(), LONG_TASK.strip()).text) - 1
    episodes, metrics = step_of_scope(plan, solver={"max_prompt_tokens": limit})
    tried = [e for e in episodes if e.role == "solver"]
    unplayed = [e for e in tried if not e.text["turns"]]
    assert {e.text["task"] for e in unplayed} == {LONG_TASK.strip()} and len(unplayed) == 2
    assert metrics["estimate/prompt_too_long"] == pytest.approx(len(unplayed) / len(tried))
    (draft,) = [e for e in episodes if e.role == "challenger" and e.text["task"] == LONG_TASK.strip()]
    assert draft.parts["solver_mean"] == 0 and draft.parts["difficulty"] == 0


def test_every_stage_of_scope_has_its_limit_and_an_exam_takes_any_prompt():
    own = {"max_response_tokens": 20}
    for stage, metric in (("challenger", "challenger"), ("estimate", "estimate")):
        changes = {"challenger": {"sampling": own}} if stage == "challenger" else {stage: own}
        assert step_of_scope(**changes)[1][f"{metric}/cut_off"] == 1
    rows = [{"question": "Tell.", "rubric": [{"criterion": "Names alpha.", "weight": 1.0, "priority": ""}]}]
    cfg = scope_world.card(solver={"max_prompt_tokens": 10})
    (record,) = harness.run_exam(GAMES["scope"], cfg, scope_world.world(), rows, max_tokens=999)
    assert record["measures"]["score"] == 1
    short = cfg.model_copy(update={"evaluate": cfg.evaluate.model_copy(update=own)})
    (record,) = harness.run_exam(GAMES["scope"], short, scope_world.world(), rows, max_tokens=999)
    assert record["prediction"] is None
    questions = [{"question": harness.question_about(0), "answers": ["Paris"]}]
    cfg = harness.card(solver={"max_prompt_tokens": 10})
    (record,) = harness.run_exam(GAMES["ssp"], cfg, harness.world(), questions, max_tokens=999)
    assert record["correct"]


def test_the_papers_figures_are_the_defaults():
    small = load_card("configs/ssp/atlas.toml")
    assert {
        small.options(SSPSection).proposer.max_prompt_tokens,
        small.options(SSPSection).solver.max_prompt_tokens,
    } == {4096}  # SSP Table 4
    assert {
        role.sampling.max_response_tokens
        for role in (small.options(SSPSection).proposer, small.options(SSPSection).solver)
    } == {8192}
    game = load_card("configs/scope/atlas.toml").options(ScopeSection)
    assert (game.challenger.max_prompt_tokens, game.solver.max_prompt_tokens) == (1024, 2048)  # SCOPE Table 9
    stages = (game.challenger.sampling, game.solver.sampling, game.estimate, game.creation)
    assert {sampling.max_response_tokens for sampling in stages} == {8192}
