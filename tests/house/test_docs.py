"""The documents agree with the code: every key of a card is documented with its default, and some code reads it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from scope_jax import games
from scope_jax.config import Config, LossCard, RoleSection
from scope_jax.games.scope.options import ScopeSection
from scope_jax.games.score.options import ScoreSection
from scope_jax.games.spell.options import SpellSection
from scope_jax.games.spice.options import SpiceSection
from scope_jax.games.ssp.options import SSPSection

ROOT = Path(__file__).parents[2]
# Tables with the keys of another table, where they are documented.
LIKE_ANOTHER = {"evaluate.judge": "judge", "evaluate.grader": "scope.grader", "rollout.mesh": "mesh"}


def inner(annotation: Any) -> type[BaseModel] | None:
    """The section inside an annotation such as tuple[EvalSet, ...] or JudgeSection | None."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def keys(section: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Dotted key → default (PydanticUndefined: required) of a section and all below it."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        below = inner(field.annotation)
        if below is None or isinstance(field.default, tuple):
            found[prefix + name] = field.default
        if below is not None:
            found |= keys(below, f"{prefix}{name}.")
    return found


SECTIONS = {name: keys(game.options) for name, game in games.GAMES.items()}  # of each game, keys with defaults


def shown(default: Any) -> str:
    """A default as the tables show it."""
    if default is PydanticUndefined:
        return "—"
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return str(list(default) if isinstance(default, tuple) else default)


def documented() -> dict[str, str]:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([a-z0-9_.]+)` \| (.*?) \|", text, re.MULTILINE))


def test_every_key_is_documented_with_its_default() -> None:
    table = {key: shown(default) for key, default in keys(Config).items()}
    solver = SSPSection().solver
    for key in keys(RoleSection):
        if not key.startswith("loss."):
            value = solver
            for part in key.split("."):
                value = getattr(value, part)
            table[f"ssp.solver.{key}"] = shown(value)
    table |= {f"loss.{key}": shown(default) for key, default in keys(LossCard).items()}
    for name in LIKE_ANOTHER:
        table = {key: default for key, default in table.items() if not key.startswith(f"{name}.")} | {name: "none"}
    assert documented() == table


def test_a_table_like_another_has_its_keys() -> None:
    found = {*keys(Config), *(f"{game}.{key}" for game, section in SECTIONS.items() for key in section)}
    for name, other in LIKE_ANOTHER.items():
        own = {key.removeprefix(f"{name}.") for key in found if key.startswith(f"{name}.")}
        assert own == {key.removeprefix(f"{other}.") for key in found if key.startswith(f"{other}.")} and own


def test_every_key_of_the_game_is_documented() -> None:
    text = (ROOT / "docs" / "ssp.md").read_text(encoding="utf-8")
    own = [key for key in SECTIONS["ssp"] if "." not in key]
    assert len(own) > 20
    assert [key for key in own if f"`{key}`" not in text] == []


# For each game: its section, and the tables in it that are documented as a whole.
GAMES = {
    "scope": (ScopeSection(), ("challenger", "solver", "estimate", "creation")),
    "spice": (SpiceSection(), ("challenger.sampling", "reasoner.sampling", "loss")),
    "score": (ScoreSection(), ("solver", "evaluator", "dimensions", "fixed_rubric")),
}


@pytest.mark.parametrize("game", GAMES)
def test_every_key_of_a_game_is_documented_with_its_default(game: str) -> None:
    section, whole = GAMES[game]
    text = (ROOT / "docs" / f"{game}.md").read_text(encoding="utf-8").split("## Options")[1].split("\n## ")[0]
    table = dict(re.findall(r"^\| `([a-z0-9_.]+)` \| (.*?) \|", text, re.MULTILINE))
    expected = {}
    for key in keys(type(section)):
        if (
            key.startswith(tuple(f"{name}." for name in whole))
            or ".endpoint." in key
            or key == "prompts"
            or key in whole
        ):
            continue
        value: Any = section
        for part in key.split("."):
            value = getattr(value, part)
        expected[key] = shown(value)
    named = {key: shown for key, shown in table.items() if key not in whole and not key.endswith(".endpoint")}
    assert named == expected
    assert all(f"`{name}`" in text for name in (*whole, "prompts"))


def test_every_key_of_spell_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "spell.md").read_text(encoding="utf-8").split("## Options")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z0-9_`, ]+) \| (.*?) \|", text, re.MULTILINE)
    table = {name.strip("`"): default for names, default in rows for name in names.split(", ")}
    tables = ("questioner", "responder", "verifier", "loss", "questioner_advantage")  # described in words
    own = {key: default for key, default in keys(SpellSection).items() if key.split(".")[0] not in (*tables, "prompts")}
    assert {key: default for key, default in table.items() if key not in tables} == {
        key: shown(default) for key, default in own.items()
    }
    assert set(tables) <= set(table) and "`prompts`" in text


def test_every_key_is_read_somewhere() -> None:
    read = set()
    for folder in ("scope_jax", "launch"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if path.parent.name != "config":
                read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    # Sections passed on as a whole with model_dump: their keys are fields of the receiving dataclass.
    for path in (ROOT / "sharding" / "mesh.py", ROOT / "retrieval" / "scann.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    unread = [key for key in keys(Config) if key.rsplit(".", 1)[-1] not in read]
    assert unread == []


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *[f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")]]
)
def test_links_are_valid(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_paths_in_the_layout_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text.split("## Repository layout")[1].split("```")[1]
    names = [name for name in re.findall(r"([a-z_]+/[a-z_/]*|[a-z_]+\.py)", tree) if not name.startswith("ssp")]
    assert len(names) > 20
    missing = [n for n in names if not any((ROOT / place / n).exists() for place in ("", "scope_jax", "tests"))]
    assert missing == []


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = [
        cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.strip("|").split(" | ")
    ]
    assert len(text.splitlines()) < 90 and max(map(len, cells)) <= 120


def test_the_site_has_every_page() -> None:
    """`make test` builds it, strictly; here only that no page is missing from its navigation."""
    pages = re.findall(r"[\w.]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1])
    assert sorted(pages) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_tables_for_users_of_other_libraries_name_keys_that_exist() -> None:
    """In the column "here" of docs/coming_from.md, what looks like a key of a card is one."""
    lines = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8").splitlines()
    ours = [line.split(" | ")[-1] for line in lines if line.startswith("| ")]
    named = {key for cell in ours for key in re.findall(r"`([A-Za-z]+(?:\.[a-z_]+)+)`", cell)}
    known = {*keys(Config), *(f"ROLE.{key}" for key in keys(RoleSection)), *LIKE_ANOTHER, "episodes.jsonl"}
    assert len(named) > 20 and sorted(named - known) == []
    values = re.findall(r"`(\w+) = \"([\w-]+)\"`", "\n".join(ours))
    assert len(values) > 8
    for key, value in values:
        LossCard.model_validate({key: value, "dual_clip": 0.0})
