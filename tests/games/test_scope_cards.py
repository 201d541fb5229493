"""The paper's cards, the ablations in docs/scope.md and the prompts agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scope_jax.games import load_card, scope
from scope_jax.games.scope import messages
from scope_jax.games.scope.options import ScopeSection, options
from scope_jax.games.scope.state import TaskOrder
from scope_jax.text import dialects, templates
from tests.games.harness import example
from tests.games.scope_world import PROTOCOLS, card

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "configs" / "scope").glob("*b.toml"))
SHIPPED = Path(ScopeSection().prompts)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_the_papers_cards_are_the_defaults(path: Path):
    """test_citations compares their values with the paper."""
    cfg = load_card(path)
    game = options(cfg)
    assert cfg.rollout.max_length == max(cfg.learner.buckets)
    assert game.target_tasks == game.solver_batch * game.steps_per_iteration
    changed = {"prompts", "solver_stops_at_search"} | ({"gates"} if "qwen3" in path.stem else set())
    assert game.model_dump(exclude=changed) == ScopeSection().model_dump(exclude=changed)
    assert scope.GAME.judges(cfg) == {} and scope.GAME.uses_base(cfg)


def test_each_card_uses_its_models_dialect():
    written = {path.stem: (load_card(path).model.dialect, load_card(path).model.turns) for path in CARDS}
    assert written == {
        "olmo3-7b": PROTOCOLS["olmo3"],
        "qwen2.5-7b": PROTOCOLS["qwen2.5"],
        "qwen3-8b": PROTOCOLS["qwen3"],
    }


def test_the_documented_settings_are_accepted_and_change_something():
    section = (ROOT / "docs" / "scope.md").read_text().split("## Cards")[1].split("## What")[0]
    settings = set(re.findall(r"`(scope\.[\w.]+=[^`]+)`", section))
    assert len(settings) >= 17
    for setting in settings:
        extra = ["data.prompts=p.jsonl"] if "curated" in setting else []
        changed, value = load_card(CARDS[0], [setting, *extra]), load_card(CARDS[0])
        assert options(changed) != options(value), f"{setting} changes nothing"


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
    assert sorted(options(cfg).task_types.values()) == [0.0, 1.0, 1.0, 1.0]
    assert scope.GAME.judges(cfg)["grader"].temperature == 0.6


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prompts_use_the_dialect_and_fill_every_variable(protocol: str):
    cfg = card(protocol=protocol)
    dialect = dialects.load(cfg.model.dialect)
    order = TaskOrder(0, "k", "A document {with} braces and <task>tags</task>.", "long_form_qa", 3)
    prompt = messages.for_challenger(cfg, order).text
    assert example(dialect) in prompt and dialect.place in prompt and "exactly 3 times" in prompt
    assert "Kind of task: long form qa" in prompt and "A document {with} braces and [task]tags[/task]." in prompt
    solver = messages.for_solver(cfg, "Do it.").text
    assert example(dialect) in solver and solver.endswith("Task: Do it.")
    assert example(dialect) in messages.NOT_RUN.text(cfg)
    texts = (prompt.replace("{with}", ""), solver, messages.for_rubric_writer(cfg, "t", ["d"]))
    assert not any(templates.variables(text) for text in texts if protocol != "qwen3")


def test_the_policies_of_a_card_are_known_without_its_prompts(tmp_path: Path):
    """As for the weights of a run whose prompts are elsewhere."""
    cfg = card(prompts=str(tmp_path / "gone"))
    assert scope.GAME.policies(cfg) == ("challenger", "solver")
    assert scope.GAME.exam_of(cfg).role.agent.policy == "solver"
    with pytest.raises(templates.PromptError, match=r"challenger\.txt: the prompt file does not exist"):
        scope.GAME.check_prompts(cfg)


@pytest.mark.parametrize("kind", ScopeSection().task_types)
def test_every_type_of_task_has_a_description(kind: str):
    text = messages.for_challenger(card(), TaskOrder(0, "k", "d", kind, 1)).user
    assert (SHIPPED / f"type_{kind}.txt").read_text().strip() in text
