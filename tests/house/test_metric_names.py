"""Every metric that a card or a document names is produced by a step, its update, an exam or the benchmark of seeds."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.seeds.figures import DERIVED
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.evaluation.metrics import set_metrics
from scope_jax.games import (
    GAMES,
    absolute_zero,
    dr_zero,
    load_card,
    r_zero,
    rlvr,
    scope,
    score,
    spell,
    spice,
    spiral,
    ssp,
)
from scope_jax.games.r_zero.game import BINS
from scope_jax.grading.measures import BY_TEXT
from scope_jax.learner.learner import METRICS, Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.play import collapse, given
from scope_jax.play.game import play_step as game_step
from scope_jax.report.panels import SPEED, Panel, series
from scope_jax.report.progress import headline
from scope_jax.run.overlapping import staleness_by_role
from scope_jax.run.performance import NAMES, PHASES
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.games import (
    dr_zero_world,
    harness,
    r_zero_world,
    rlvr_world,
    scope_world,
    score_world,
    spell_world,
    spice_world,
    test_absolute_zero_golden,
    test_absolute_zero_rules,
    test_spiral_golden,
)
from tests.games.harness import play_step
from tests.learner.conftest import TINY, random_episodes

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CARDS = sorted(
    path for path in (ROOT / "configs").rglob("*.toml") if path.relative_to(ROOT / "configs").parts[0] != "exams"
)


@cache
def learner_metrics() -> set[str]:
    """The learner's metrics of a step, but for those by depth; the program is traced, not compiled."""
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    section = LearnerSection(buckets=(32,), attention="reference")
    learner = Learner(TINY, mesh, OptimizerSection(), section, param_dtype="float32", compute_dtype="float32")
    state, names = learner.abstract_state(reference=True), set()
    for changes in ({"rollout_cap": 2.0}, {"kl": "k3-plain"}):
        card = LossCard.model_validate(changes)
        (batch,) = learner.pack(random_episodes(4, 2), card)
        scores = jax.eval_shape(learner.score, state, batch)
        names |= set(jax.eval_shape(lambda s, b, sc, card=card: learner.step(s, b, sc, card), state, batch, scores)[1])
    return {name for name in names if "@" not in name}


def played_ssp() -> set[str]:
    cfg, tools = harness.card(), harness.world()
    metrics = play_step(GAMES["ssp"], cfg, tools, ssp.GAME.start(cfg), harness.ITEMS, 0)[2]
    rows = [{"question": harness.question_about(0), "answers": ["Paris"]}]
    return set(metrics) | exam("ssp", harness.run_exam(GAMES["ssp"], cfg, tools, rows, max_tokens=9))


def played_scope() -> set[str]:
    cfg, names = scope_world.card(iterations=1), set()
    memory, step = scope.GAME.start(cfg), 0
    while not scope.GAME.finished(cfg, memory):
        items = scope_world.DOCUMENTS if memory["stage"] != "solver" else []
        _, memory, metrics = play_step(GAMES["scope"], cfg, scope_world.world(), memory, items, step)
        names, step = names | set(metrics), step + 1
    assert step >= 3  # every stage was played
    item = {"criterion": "Names alpha.", "weight": 1.0, "priority": "", "fact": ["The name is", "alpha"]}
    rows = [{"question": "Tell of Delhi.", "rubric": [item]}]
    return names | exam("scope", harness.run_exam(GAMES["scope"], cfg, scope_world.world(), rows, max_tokens=9))


def played_spice() -> set[str]:
    cfg, plan = spice_world.card(), spice_world.Plan(answers={"How many": [r"\boxed{7}", "", "", ""]})
    return set(game_step(spice.GAME, cfg, spice_world.world(plan), spice.GAME.start(cfg), 0)[2])


def played_spell() -> set[str]:
    names: set[str] = set()
    for cfg in (spell_world.card(), spell_world.card(rule="judge", judge_table={"url": "http://judge", "model": "m"})):
        judge = iter(["Correct"] * 99)
        tools = spell_world.world(judge_reply=lambda message, judge=judge: next(judge))
        names |= set(game_step(spell.GAME, cfg, tools, spell.GAME.start(cfg), 0)[2])
    return names


def played_score() -> set[str]:
    cfg = score_world.card()
    return set(game_step(score.GAME, cfg, score_world.world(), score.GAME.start(cfg), 0)[2])


def played_r_zero() -> set[str]:
    question, cfg, names = "3 + 4", r_zero_world.card(challenger_batch=1, pool=1), set()
    votes = {question: r_zero_world.said(7, 7, 8, None)}
    plan = r_zero_world.Plan({"0": [r_zero_world.asked(question)] * 2}, votes, {question: r_zero_world.said(7, 8)})
    memory = r_zero.GAME.start(cfg)
    while not r_zero.GAME.finished(cfg, memory):
        _, memory, metrics = play_step(r_zero.GAME, cfg, r_zero_world.world(plan), memory, [], 0)
        names |= set(metrics)
    bins = {f"{phase}/agreement_{bound}" for phase in ("challenger", "pool") for bound in BINS}
    return names | bins


def played_rlvr() -> set[str]:
    cfg, names = rlvr_world.card(), {"function/late"}  # see tests/games/test_rlvr.py
    tools = rlvr_world.world(["\\boxed{2}"], ["4"], data=rlvr_world.ROWS)
    names |= set(game_step(rlvr.GAME, cfg, tools, rlvr.GAME.start(cfg), 0)[2])
    records = harness.run_exam(rlvr.GAME, cfg, rlvr_world.world(["\\boxed{2}"]), rlvr_world.ROWS)
    return names | exam("held_out", records)


def played_spiral() -> set[str]:
    rows = [{"game": "tictactoe", "opponent": "random", "moves": []}]
    cfg = test_spiral_golden.three_games()
    return set(test_spiral_golden.played(cfg)[2]) | exam("spiral", test_spiral_golden.records(cfg, rows))


def played_dr_zero() -> set[str]:
    cfg, names = dr_zero_world.card(hops=[4, 3], window=[0.0, 1.0]), set()  # hops as on Atlas
    memory, step = dr_zero.GAME.start(cfg), 0
    while not dr_zero.GAME.finished(cfg, memory):
        _, memory, metrics = game_step(dr_zero.GAME, cfg, dr_zero_world.world(), memory, step)
        names, step = names | set(metrics), step + 1
    rows = [{"question": "Which colour?", "answers": ["red"]}]
    return names | exam("dr_zero", harness.run_exam(dr_zero.GAME, cfg, dr_zero_world.world(), rows, max_tokens=9))


def played_absolute_zero() -> set[str]:
    cfg = test_absolute_zero_rules.card(batch=2, seeds=5, inputs=4, estimates=4, references=2)
    tools = harness.ScriptedTools(test_absolute_zero_golden.script)
    return set(play_step(absolute_zero.GAME, cfg, tools, {}, [], 0)[2])


def given_answers(name: str) -> set[str]:
    ranked = {f"dpo/{one}" for one in METRICS if one.startswith("implicit_")} if name == "dpo" else set()
    return set(given.metrics(harness.ScriptedTools(lambda context: ""), name, [True, False], [])) | ranked


def exam(name: str, records: list[dict[str, Any]]) -> set[str]:
    return set(set_metrics("eval", name, records))


@cache
def produced() -> dict[str, frozenset[str]]:
    """The metrics of each game."""
    games: dict[str, tuple[set[str], tuple[str, ...]]] = {
        "ssp": (played_ssp(), ("solver", "proposer")),
        "scope": (played_scope(), ("solver", "challenger")),
        "spell": (played_spell(), ("questioner+responder+verifier",)),
        "spice": (played_spice(), ("challenger+reasoner",)),
        "score": (played_score(), ("solver", "evaluator")),
        "r_zero": (played_r_zero(), ("challenger", "solver")),
        "spiral": (played_spiral(), (spiral.GAME.updates(test_spiral_golden.three_games())[0].name,)),
        "rlvr": (played_rlvr(), ("policy",)),
        "dr_zero": (played_dr_zero(), ("proposer", "solver")),
        "absolute_zero": (
            played_absolute_zero(),
            (absolute_zero.GAME.updates(test_absolute_zero_rules.card())[0].name,),
        ),
        **{name: (given_answers(name), (name,)) for name in ("sft", "dpo")},
    }
    assert set(games) == set(GAMES)
    return {
        game: frozenset(own | {f"{role}/{name}" for role in roles for name in learner_metrics()})
        for game, (own, roles) in games.items()
    }


def of_two_versions(role: str) -> Episode:
    """An episode of steps that overlap."""
    ids = np.arange(3, dtype=np.int32)
    datum = Datum(ids, ids > 0, np.zeros(3, np.float32), versions_T=np.array([0, 4, 5], np.int32))
    return Episode(role, "actor", "0", (datum,), 0.0, learned=6)


@cache
def known() -> frozenset[str]:
    measured = {*NAMES, *(f"time/{phase}" for phase in PHASES)}  # of every game
    measured |= set(DERIVED)  # computed by the benchmark from what a run has written
    measured |= {f"eval/set/{measure}" for measure in BY_TEXT}  # that a card may ask for
    updates = {name.rpartition("/")[0] for own in produced().values() for name in own if name.endswith("/loss")}
    roles = {role for update in updates for role in update.split("+")} - {"sft", "dpo"}
    measured |= {f"{role}/{sign}" for role in roles for sign in collapse.SIGNS}
    measured |= {f"{role}/{sign}_se" for role in roles for sign in collapse.ESTIMATED}
    measured |= {name for role in roles for name in staleness_by_role([of_two_versions(role)])}
    return frozenset(measured).union(*produced().values())


def matches(mention: str) -> bool:
    """True if a metric has this name; `<reason>` matches any one part, … matches anything, a set may have any name."""
    pattern = re.sub(r"<\w+>", "[^/]+", re.sub(r"^eval/\w+/", "eval/<set>/", mention)).replace("…", ".+")
    return any(re.fullmatch(pattern, name) for name in known())


def in_document(text: str) -> set[str]:
    """`a/b` in backticks, unless it is a path of the repository or the name of a card."""
    quoted = re.findall(r"`((?:[a-z_]+|…|<role>)(?:/(?:[a-z_]*<\w+>|[a-z_]+|…))+)`", text)
    named = {name for name in quoted if not (ROOT / "configs" / f"{name}.toml").is_file()}
    return {name for name in named if not (ROOT / name.split("/")[0]).exists()}


def in_card(text: str) -> set[str]:
    """Words a/b in comments where a is the first part of some metric."""
    comments = " ".join(line.partition("#")[2] for line in text.splitlines())
    families = {name.split("/")[0] for name in known()}
    words = re.findall(r"(?<![\w/.<])[a-z_]+(?:/[a-z_]+)+(?![\w/.-])", comments)
    return {word for word in words if word.split("/")[0] in families}


@pytest.mark.parametrize("path", [*DOCUMENTS, *CARDS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_metric_is_named_that_does_not_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = in_document(text) if path.suffix == ".md" else in_card(text)
    assert sorted(name for name in named if not matches(name)) == []


def shows(panel: Panel, name: str) -> bool:
    return bool(series([{"step": 1, name: 0.5}], panel))


@pytest.mark.parametrize("game", GAMES)
def test_every_panel_of_the_report_shows_metrics_of_its_game(game: str) -> None:
    for panel in GAMES[game].panels:
        for wanted in () if panel.of_exams else panel.names:
            assert any(shows(replace(panel, names=(wanted,)), name) for name in produced()[game]), wanted


@pytest.mark.parametrize("wanted", [name for panel in SPEED for name in panel.names])
def test_every_figure_of_speed_exists(wanted: str) -> None:
    assert any(name.endswith(wanted) for name in known())


@pytest.mark.parametrize("game", GAMES)
def test_the_report_and_the_line_of_a_step_show_every_measure_of_the_atlas_exams(game: str) -> None:
    cfg = load_card(ROOT / "configs" / game / "atlas.toml")
    default = GAMES[game].exam_of(cfg).measures
    for card in cfg.evaluate.sets:
        for measure in card.measures or default:
            name = f"eval/{card.name}/{'score' if measure == 'rubric' else measure}"
            assert shows(GAMES[game].panels[0], name) and headline({name: 0.5}) == f"{name} 0.500"


def test_names_are_found_in_documents_and_cards() -> None:
    text = (ROOT / "docs" / "scope.md").read_text(encoding="utf-8")
    assert {"gates/relevance", "challenger/rejected_<reason>", "estimate/…", "…/cut_off"} <= in_document(text)
    assert in_document("`docs/losses.md` `configs/scope` `</answer>` `gates/nothing`") == {"gates/nothing"}
    assert in_card("# falls (challenger/grounded); see configs/scope/atlas.toml, solver/x.md") == {
        "challenger/grounded"
    }
    assert (
        not matches("challenger/grounded") and matches("challenger/rejected_<reason>") and matches("<role>/cut_off_se")
    )


@pytest.mark.parametrize("game", ["ssp", "scope", "spice", "spell", "score", "spiral", "absolute_zero", "rlvr"])
def test_the_section_on_what_to_watch_names_metrics(game: str) -> None:
    text = (ROOT / "docs" / f"{game}.md").read_text(encoding="utf-8").split("## What to watch")[1]
    names = set(re.findall(r"`([a-z_]+)`", text)) - {"metrics"}
    assert sorted(names - {name.rpartition("/")[2] for name in known()}) == []
