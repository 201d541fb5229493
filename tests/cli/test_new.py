"""What `scope-jax new` writes: keys that one changes first, how turns are joined, instructions; and --force."""

from __future__ import annotations

import json
import re
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.cli.defaults import with_defaults
from scope_jax.cli.new import NAMES
from scope_jax.config import Config
from scope_jax.config.loading import read_table
from scope_jax.games import GAMES, load_card, overridden
from scope_jax.games.rlvr.options import options
from scope_jax.run.config_file import as_toml

ROOT = Path(__file__).parents[2]
ATLAS = ROOT / "assets" / "atlas"
BASE = ATLAS / "r_zero" / "base"
SOLVER = ROOT / "examples" / "python_solver.py"
REWRITING = (  # a template that leaves out earlier turns of the assistant
    "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"question": f"{n} + {n}", "answer": f"{2 * n}"} for n in range(110)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def rlvr(card: Path, rows: Path, *more: object) -> Any:
    return invoke("new", card, "--game", "rlvr", "--model", BASE, "--data", rows, "--max-length", 128, *more)


@pytest.mark.parametrize("game", GAMES)
def test_the_commented_lines_are_the_values_in_force(game: str, tmp_path: Path) -> None:
    file = ROOT / "configs" / game / "atlas.toml"
    table = read_table(file)
    table["rollout"].pop("slots", None)
    table.pop("optimizer", None)
    cfg = overridden(deepcopy(table), (), "the card")
    text = with_defaults(as_toml(table), table, cfg, GAMES[game])
    card = tmp_path / "card.toml"

    def read(lines: str) -> Config:
        card.write_text(lines, encoding="utf-8")
        return load_card(card)

    assert read(text) == read(re.sub(r"^# ", "", text, flags=re.MULTILINE)) == cfg
    assert read(re.sub(r"^# slots = .*$", "slots = 6", text, flags=re.MULTILINE)).rollout.slots == 6
    assert "# [optimizer]\n# learning_rate = 1e-06  # with an adapter ten times as much\n" in text


def test_a_new_card_shows_what_one_changes_first(tmp_path: Path, rows: Path) -> None:
    card = tmp_path / "card.toml"
    assert rlvr(card, rows, "--set", "rlvr.samples=4").exit_code == 0
    commented = re.findall(r"^# (\w+) = ", card.read_text(encoding="utf-8"), re.MULTILINE)
    assert commented == ["batch_size", "learning_rate", "temperature", "max_tokens"]  # the others are set


def test_a_card_is_replaced_only_by_force_and_by_a_good_one(tmp_path: Path, rows: Path) -> None:
    card = tmp_path / "card.toml"
    card.write_text("# mine\n", encoding="utf-8")
    refused = rlvr(card, rows)
    assert refused.exit_code == 2 and f"{card} exists; replace it with --force, or give another name." in refused.stderr
    wrong = rlvr(card, tmp_path / "none.jsonl", "--force")
    assert wrong.exit_code == 2 and "the card is not kept." in wrong.stderr
    assert card.read_text(encoding="utf-8") == "# mine\n"
    assert rlvr(card, rows, "--force").exit_code == 0 and load_card(card).system == "rlvr"


@pytest.mark.parametrize(
    ("sets", "instruction"),
    [
        ([], "Put the final answer into \\boxed{}."),
        (["rlvr.grader=exact-match"], ""),
        (["rlvr.grader=exact-match", "rlvr.answer_in=tag"], "Put the final answer into <answer></answer>."),
        (["rlvr.instruction=In a box."], "In a box."),
        (["rlvr.grader=function", "rlvr.function={folder}/reward.py"], ""),
    ],
)
def test_an_instruction_goes_with_the_grader(tmp_path: Path, rows: Path, sets: list[str], instruction: str) -> None:
    (tmp_path / "reward.py").write_text("def reward(completion, **row):\n    return len(completion)\n")
    card, words = tmp_path / "card.toml", [word for one in sets for word in ("--set", one.format(folder=tmp_path))]
    assert rlvr(card, rows, *words).exit_code == 0
    assert options(load_card(card)).instruction == instruction


def test_games_are_listed_where_one_is_asked_for(tmp_path: Path) -> None:
    assert NAMES.split(", ") == sorted(GAMES)
    assert f"The game: {NAMES}, or a Python file" in re.sub(r"\s+│\s+│\s+", " ", invoke("new", "--help").stdout)
    wrong = invoke("new", tmp_path / "a.toml", "--game", "spic", "--model", BASE).stderr
    assert wrong == f"scope-jax: --game spic is not a game; give one of {NAMES}, or the path of a Python file.\n"
    loss = invoke("new", tmp_path / "a.toml", "--game", "grpo", "--model", BASE).stderr
    assert "grpo is a loss, by which rlvr trains (docs/rlvr.md#algorithms); give one of" in loss


@pytest.mark.parametrize(("template", "turns"), [("", "chat"), (REWRITING, "chat-trimmed")])
def test_a_game_with_tools_reads_results_as_the_template_can_show_them(
    tmp_path: Path, rows: Path, template: str, turns: str
) -> None:
    model = shutil.copytree(ATLAS / "ssp" / "base", tmp_path / "model")
    if template:
        (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    card = tmp_path / "card.toml"
    sets = ("--set", "python_solver.questions=2", "--set", "python_solver.samples=2")
    words = ("new", card, "--game", SOLVER, "--model", model, "--data", rows, *sets)
    assert invoke(*words).exit_code == 0
    assert load_card(card).model.turns == turns
    refused = invoke(*words, "--force", "--set", "model.turns=raw")
    assert refused.exit_code == 2
    assert "WRONG  calls of roles: with model.turns = \"raw\" the role 'solver' would read no result" in refused.stdout


def test_rows_as_they_are_published_name_what_converts_them(tmp_path: Path, rows: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_text('{"input": "Is it so?", "target": "Yes"}\n' * 120, encoding="utf-8")
    refused = rlvr(tmp_path / "card.toml", raw)
    assert refused.exit_code == 2
    (line,) = [line for line in refused.stdout.splitlines() if line.startswith("WRONG  data: ")]
    assert line.endswith(f"; rows of bbeh are converted by `scope-jax data bbeh OUT.jsonl --source {raw}`.")
    raw.write_text('{"question": "1 + 1?", "answer": "It is 2.\\n#### 2"}\n', encoding="utf-8")
    card = "ssp/atlas"
    found = invoke(
        "check", card, "--set", f'evaluate.sets=[{{name="raw", path="{raw}"}}]', "--set", f"data.answers={raw}"
    )
    for name in ("data", "exam raw"):
        (line,) = [line for line in found.stdout.splitlines() if line[7:].startswith(f"{name}: ")]
        assert (
            line.startswith("doubt ")
            and "whole solutions; rows of gsm8k are converted by `scope-jax data gsm8k" in line
        )
