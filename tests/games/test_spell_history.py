"""SPELL's history memory: what the questioner reads for each further question (section 4.1)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from scope_jax.config import Config
from scope_jax.games import spell
from scope_jax.games.spell import state
from scope_jax.games.spell.options import options
from scope_jax.games.spell.roles import draw_context, draw_contexts
from scope_jax.games.spell.rules import allowed_tasks
from scope_jax.games.spell.state import Question, QuestionerContext
from scope_jax.play.game import play_step, step_of
from scope_jax.play.step import Step
from tests.games.spell_world import CLUSTERS, card, cluster, world


def play(cfg: Config, steps: int, documents: int = 12) -> tuple[list[QuestionerContext], dict[str, Any]]:
    """Repeated questions about one cluster, all of them remembered."""
    history: dict[str, Any] = {}
    contexts = []
    for place in range(steps):
        contexts.append(one(cfg, history, cluster("Oslo", "qa", documents), place))
        solved = state.solvable(options(cfg), contexts[-1], Question(f"Question {place}?", "yes"))
        history = state.push(options(cfg), history, [solved])
    return contexts, history


def begun(cfg: Config) -> Step[Any]:
    """The first step of a run."""
    return step_of(spell.GAME, cfg, world(), spell.GAME.start(cfg), 0)


def one(cfg: Config, history: dict[str, Any], row: dict[str, Any], place: int) -> QuestionerContext:
    context = draw_context(begun(cfg), history, row, place)
    assert context is not None
    return context


def shown(context: QuestionerContext) -> list[str]:
    return [document["id"] for document in context.documents]


def test_the_context_grows_up_to_its_limit_and_then_slides():
    contexts, memory = play(card(documents=2, history=3), 8)
    assert [len(shown(context)) for context in contexts] == [2, 4, 6, 8, 8, 8, 8, 8]  # (L + 1) m at most
    assert [len(context.history) for context in contexts] == [0, 1, 2, 3, 3, 3, 3, 3]
    for before, context in pairwise(contexts):
        assert not set(context.new) & {key for entry in context.history for key in entry.documents}  # new ones
        assert context.history[-1].question == f"Question {before.position}?"
    for context in contexts:
        assert shown(context) == sorted(
            shown(context), key=lambda key: int(key.removeprefix("Oslo"))
        )  # the cluster's order
    assert [entry["question"] for entry in memory["Oslo/qa"]] == [f"Question {n}?" for n in (5, 6, 7)]


def test_without_history_every_question_is_a_first_question():
    cfg = card(documents=2, history=0)
    context = one(
        cfg, {"Oslo/qa": [{"documents": ["Oslo0"], "question": "?", "answer": "!"}]}, cluster("Oslo", "qa"), 0
    )
    assert context.history == () and len(shown(context)) == 2 and not state.accepts(options(cfg), 0.5)


def test_an_entry_may_hold_all_documents_read():
    """As in the released code: no document is forgotten while its questions are remembered."""
    contexts, memory = play(card(documents=2, history=3, history_documents="seen"), 5)
    assert [len(shown(context)) for context in contexts] == [2, 4, 6, 8, 10]
    assert [len(entry["documents"]) for entry in memory["Oslo/qa"]] == [6, 8, 10]


def test_after_all_documents_none_is_added_until_one_is_forgotten():
    contexts, _ = play(card(documents=2, history=3), 6, documents=5)
    assert [len(context.new) for context in contexts] == [2, 2, 1, 0, 2, 2]  # then the first two count as new again
    assert not any(context.restarts for context in contexts)


def test_after_all_documents_the_history_may_be_reset():
    contexts, memory = play(card(documents=2, history=3, all_seen="reset"), 5, documents=5)
    assert [context.restarts for context in contexts] == [False, False, False, True, False]
    assert [len(context.history) for context in contexts] == [0, 1, 2, 0, 1] and len(contexts[3].new) == 2
    assert [entry["question"] for entry in memory["Oslo/qa"]] == ["Question 3?", "Question 4?"]


@pytest.mark.parametrize(
    ("success", "mixed", "solved"), [(0.0, False, False), (0.5, True, True), (1.0, False, True), (0.125, True, True)]
)
def test_what_is_remembered(success: float, mixed: bool, solved: bool):
    assert state.accepts(options(card()), success) is mixed
    assert state.accepts(options(card(history_accepts="solved")), success) is solved


def test_a_run_from_another_one_forgets_what_was_asked_about_other_clusters():
    """Clusters of different files may have the same ids, as those of `index --clusters` have."""
    before = card()
    other = before.model_copy(update={"data": before.data.model_copy(update={"clusters": "other.jsonl"})})
    memory = {"position": 8, "history": {"c000000/qa": [{"documents": ["a"], "question": "?", "answer": "!"}]}}
    assert spell.GAME.adopt(card(history=1), memory, before) == memory
    assert spell.GAME.adopt(other, memory, before) == {"position": 8, "history": {}}


def test_random_choices_depend_on_seed_and_position():
    def drawn(seed: int) -> list[tuple[str, ...]]:
        return [one(card(seed=seed), {}, cluster("Oslo", "qa", 9), place).new for place in range(20)]

    assert drawn(0) == drawn(0) != drawn(1) and len(set(drawn(0))) > 5


def test_a_cluster_is_used_for_the_tasks_of_its_family():
    shares, families = {"qa": 1.0, "math": 2.0, "choice": 0.0}, {"finance": ["math"], "web": ["qa", "choice"]}
    assert allowed_tasks(shares, families, "finance") == allowed_tasks(shares, families, "math") == ["math"]
    assert allowed_tasks(shares, families, "choice") == []  # its share is zero
    assert allowed_tasks(shares, families, "web") == ["qa"]
    assert allowed_tasks(shares, families, "else") == allowed_tasks(shares, families, None) == ["qa", "math"]
    cfg = card(tasks={"qa": 1, "math": 3, "choice": 0})
    tasks = [one(cfg, {}, cluster("Oslo", None), place).task for place in range(400)]
    assert tasks.count("qa") == pytest.approx(100, abs=30) and tasks.count("choice") == 0
    keys = {one(cfg, {}, cluster("Oslo", None), place).key for place in range(50)}
    assert keys == {"Oslo/qa", "Oslo/math"}  # a memory for each task
    mixed = [cluster("Oslo", "choice"), cluster("Lima", "qa"), cluster("Kyiv", "choice")]
    assert [context.position for context in draw_contexts(begun(cfg), {}, mixed, 7)] == [8]
    assert draw_contexts(begun(cfg), {}, mixed[:1], 7) == []


def test_a_round_without_a_suitable_cluster_is_passed_over_but_not_a_whole_step():
    """CLUSTERS: qa, math, choice, qa; one a round."""
    cfg = card(tasks={"qa": 0, "math": 0, "choice": 1}, clusters_per_round=1, max_rounds=4, groups=1)
    episodes, memory, metrics = play_step(spell.GAME, cfg, world(), spell.GAME.start(cfg), 0)
    assert [e.text["place"] for e in episodes if e.role == "questioner"] == [2]
    assert memory["position"] == 4 and metrics["groups/rounds"] == 4.0 and metrics["questions/asked"] == 1.0
    longer = card(tasks={"qa": 0, "math": 0, "choice": 1}, clusters_per_round=1, max_rounds=8)
    with pytest.raises(ValueError, match=r"none of the 8 clusters drawn in this step is for a task with a share"):
        play_step(spell.GAME, longer, world(clusters=CLUSTERS[:2]), spell.GAME.start(longer), 0)
