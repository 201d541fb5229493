"""The paper's cards, the ablations of the document and the prompts say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scope_jax import dialects, templates
from scope_jax.config import ScopeSection, load_card
from scope_jax.systems import scope
from scope_jax.systems.scope import instructions
from scope_jax.systems.scope.records import Order
from tests.systems.scope_world import WAYS, card

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "configs" / "scope").glob("*b.toml"))
SHIPPED = Path(ScopeSection().prompts)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_the_papers_cards_hold_table_9(path: Path):
    cfg = load_card(path)
    game = cfg.scope
    assert (cfg.optimizer.learning_rate, cfg.optimizer.max_grad_norm, cfg.optimizer.schedule) == (1e-6, 1.0, "constant")
    assert (game.iterations, game.steps_per_iteration, game.challenger_batch, game.solver_batch) == (3, 20, 64, 256)
    assert cfg.optimizer.warmup_steps == int(0.03 * game.iterations * game.steps_per_iteration)
    assert cfg.rollout.max_length == max(cfg.learner.buckets) == 16384
    assert (cfg.retrieval.top_k, cfg.retrieval.max_tokens) == (3, 500)
    assert {u.card.kl_coef for u in scope.updates(cfg)} == {
        1e-3
    } and game.challenger.samples == game.solver.samples == 8
    assert (game.rubric_writer.temperature, game.rubric_writer.max_tokens) == (0.0, 8192)
    assert (game.grader.temperature, game.grader.max_tokens) == (0.6, 16384)
    solver, challenger = game.solver_reward, game.challenger_reward
    assert (solver.rubric, solver.format, solver.search, solver.searches) == (1.0, 0.5, 0.1, 3)
    assert (solver.length_penalty, solver.soft_limit, solver.hard_limit, solver.floor) == (True, 1024, 2048, 0.05)
    assert (challenger.format, challenger.difficulty, challenger.target) == (0.5, 1.0, 0.5)
    assert (game.min_rubrics, game.max_rubrics, set(game.rubric_weights.values())) == (3, 5, {1.0})
    rollouts = (game.challenger.sampling, game.solver.sampling, game.estimate, game.creation)
    assert {sampling.max_tokens for sampling in rollouts} == {8192}
    # App. G
    assert (game.n_train, game.n_filter, game.window, game.search_turns) == (8, 4, (0.2, 0.8), (4, 3, 2))
    assert 200 <= game.generation_batch <= 500 and game.target_tasks == 5120
    assert game.target_tasks == game.solver_batch * game.steps_per_iteration
    assert not game.solver_stops_at_search  # the released code's
    changed = {"prompts", "solver_stops_at_search"} | ({"gates"} if "qwen3" in path.stem else set())
    assert game.model_dump(exclude=changed) == ScopeSection().model_dump(exclude=changed)  # the defaults are it
    assert scope.judges(cfg) == {} and scope.asks_base(cfg)


def test_each_card_speaks_its_models_dialect():
    spoken = {path.stem: (load_card(path).model.dialect, load_card(path).model.turns) for path in CARDS}
    assert spoken == {
        "olmo3-7b": WAYS["olmo3"],
        "qwen2.5-7b": WAYS["qwen2.5"],
        "qwen3-8b": WAYS["qwen3"],
    }


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_every_value_of_a_card_cites_its_place(path: Path):
    text = path.read_text()
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    bare = [line for line in lines if "#" not in line and not line.startswith("system =")]
    assert lines and bare == []
    assert "1,024" in text and "2,048" in text  # Table 9's lengths of prompts, which no key holds


def test_the_settings_of_the_document_are_accepted_and_change_something():
    section = (ROOT / "docs" / "scope.md").read_text().split("## The paper's ablations")[1].split("## What")[0]
    settings = set(re.findall(r"`(scope\.[\w.]+=[^`]+)`", section))
    assert len(settings) >= 17
    for setting in settings - {"scope.solver_stops_at_search=false"}:  # the card has it
        extra = ["data.prompts=p.jsonl"] if "curated" in setting else []
        changed, value = load_card(CARDS[0], [setting, *extra]), load_card(CARDS[0])
        assert changed.scope != value.scope, f"{setting} changes nothing"


def test_each_ablation_changes_one_thing_of_the_atlas_card():
    folder = ROOT / "configs" / "scope"
    base = load_card(folder / "atlas.toml").model_dump()
    found = {}
    for path in sorted((folder / "ablations").glob("*.toml")):
        assert f"configs/scope/ablations/{path.name}" in path.read_text()  # its command
        card = load_card(path).model_dump()
        changed = [key for key in base if card[key] != base[key]]
        found[path.stem] = {f"{t}.{k}": v for t in changed for k, v in card[t].items() if v != base[t][k]}
    types = {"long_form_qa": 1.0, "summarization": 1.0, "planning": 0.0, "writing": 1.0}
    assert found == {
        "frozen-challenger": {"scope.freeze_challenger_after": 1},
        "grpo-data": {"scope.mode": "curated", "data.prompts": "assets/atlas/tasks_train.jsonl"},
        "no-gates": {"scope.quality_gates": False},
        "no-length-penalty": {"scope.solver_reward": base["scope"]["solver_reward"] | {"length_penalty": False}},
        "no-planning": {"scope.task_types": types},
        "six-iterations": {"scope.iterations": 6},
    }


def test_a_table_set_on_the_command_line_keeps_its_other_keys():
    cfg = load_card(CARDS[0], ["scope.task_types.planning=0.0", 'scope.grader.endpoint={url="http://u", model="m"}'])
    assert sorted(cfg.scope.task_types.values()) == [0.0, 1.0, 1.0, 1.0]
    assert scope.judges(cfg)["grader"].temperature == 0.6


# ------------------------------------------------------------------------------------------------------------- prompts
@pytest.mark.parametrize(
    ("name", "variables", "tags"),
    [
        ("challenger", {"document", "task_type", "description", "searches", "search", "results"}, ("think", "task")),
        ("solver", {"task", "searches", "search", "results"}, ("think", "answer")),
        ("rubric_writer", {"task", "documents", "min_rubrics", "max_rubrics"}, ("rubrics",)),
        ("grader", {"task", "answer", "criterion"}, ("think", "score")),
        ("gate_entity", {"task"}, ("think", "score")),
        ("gate_relevance", {"task", "document"}, ("think", "score")),
    ],
)
def test_shipped_prompts_have_the_variables_and_tags_of_the_paper(
    name: str, variables: set[str], tags: tuple[str, ...]
):
    text = templates.load(SHIPPED, name, known=tuple(variables), required=tuple(variables))
    assert all(f"<{tag}>" in text and f"</{tag}>" in text for tag in tags)


def test_gates_come_with_examples_of_both_verdicts():
    for name in ("gate_entity", "gate_relevance"):
        text = (SHIPPED / f"{name}.txt").read_text()
        shown = text.split("Now decide")[0]
        assert shown.count("\n<score>1</score>") == shown.count("\n<score>0</score>") == 2


@pytest.mark.parametrize("way", WAYS)
def test_prompts_speak_the_dialect_and_fill_every_variable(way: str):
    cfg = card(way=way)
    words = dialects.load(cfg.model.dialect).words
    order = Order(0, "k", "A document {with} braces and <task>tags</task>.", "long_form_qa", 3)
    prompt = instructions.for_challenger(cfg, order).text
    assert words.call in prompt and words.results in prompt and "exactly 3 times" in prompt
    assert "Kind of task: long form qa" in prompt and "A document {with} braces and [task]tags[/task]." in prompt
    solver = instructions.for_solver(cfg, "Do it.").text
    assert words.call in solver and solver.endswith("Task: Do it.")
    assert words.call in instructions.not_run(cfg)
    texts = (prompt.replace("{with}", ""), solver, instructions.for_rubric_writer(cfg, "t", ["d"]))
    assert not any(templates.variables(text) for text in texts if way != "qwen3")


@pytest.mark.parametrize("kind", ScopeSection().task_types)
def test_every_type_of_task_has_a_description(kind: str):
    text = instructions.for_challenger(card(), Order(0, "k", "d", kind, 1)).user
    assert (SHIPPED / f"type_{kind}.txt").read_text().strip() in text
