"""The documents agree with the code: every key of a card is documented with its default, and some code reads it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scope_jax.config import Config, LossCard, RoleSection
from scope_jax.config.base import Section
from scope_jax.config.reference import all_keys, page
from scope_jax.config.serving import ServedModel
from scope_jax.config.suites import Figures, SuiteCard
from scope_jax.games import GAMES
from scope_jax.models.files.described import table
from scope_jax.play import game

ROOT = Path(__file__).parents[2]
CARDS: dict[str, type[Section]] = {"": Config} | {f"{name}.": game.options for name, game in GAMES.items()}
GENERATED = {"keys.md", "tables.md"}  # by tools/site.py
FOLDERS = (
    "scope_jax",
    "models",
    "rollouts",
    "retrieval",
    "sharding",
    "configs",
    "tests",
    "tools",
    "benchmarks",
    "launch",
)
FILES: tuple[type[Section], ...] = (*CARDS.values(), ServedModel, SuiteCard, Figures)


def names(section: type[Section], prefix: str = "") -> list[str]:
    return [key.name for key in all_keys(section, prefix)]


@pytest.mark.parametrize("section", FILES, ids=lambda section: section.__name__)
def test_every_key_is_described_in_a_sentence(section: type[Section]) -> None:
    keys = list(all_keys(section))
    described = [key for key in keys if key.text.rstrip(")").endswith((".", "…")) and "  " not in key.text]
    assert keys and described == keys


def test_the_table_of_families_is_that_of_the_code() -> None:
    """After a change: the table in docs/models.md is what `models/files/described.py` writes, as its docstring says."""
    assert f"\n\n{table()}\n\n" in (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_page_has_every_key() -> None:
    """Under its whole name, or in the table that the row of the table it is in names."""
    text = page(Config, {name: game.options for name, game in GAMES.items()}, SuiteCard)
    tables: dict[str, dict[str, str]] = {}
    for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        title = part.splitlines()[0].strip("`[]").lower().replace(" ", "-")
        tables[title] = dict(re.findall(r"^\| `([\w.]+)` \| (.*)$", part, re.MULTILINE))

    def written(table: str, key: str) -> bool:
        rows = tables[table]
        row = next((name for name in sorted(rows, key=len, reverse=True) if f"{key}.".startswith(f"{name}.")), None)
        if row is None or row == key:
            return row == key
        named = re.search(r"Keys: \[[^\n]+?\]\(#([\w-]+)\)", rows[row])
        inside = key.removeprefix(f"{row}.")
        return named is not None and (written(named[1], inside) or written(named[1], f"{named[1]}.{inside}"))

    for prefix, section in CARDS.items():
        whole = [key for key in names(section, prefix) if "." in key]
        assert [key for key in whole if not written(key.split(".")[0], key)] == []


class Inside(Section):
    amount: int = 3
    """How much.

    On two lines."""
    way: str | None = None
    bare: float = 0.5


class Outside(Section):
    """A table."""

    one: Inside = Inside(amount=4)
    """The first | table; see docs/data.md#formats."""
    many: tuple[Inside, ...] = ()
    """Some tables."""


class Whole(Section):
    """A card."""

    first: Outside = Outside()
    """The first of all."""


class Exam(Inside):
    form: str
    """Its form."""


def test_keys_are_those_of_tables_in_tables_with_the_defaults_in_force() -> None:
    found = {key.name: (key.default, key.text) for key in all_keys(Outside, "t.")}
    assert found["t.one"] == ("table", "The first | table; see docs/data.md#formats.")
    assert found["t.one.amount"] == ("4", "How much. On two lines.") and found["t.one.bare"] == ("0.5", "")
    assert found["t.many"] == ("[]", "Some tables.") and found["t.many.amount"][0] == "3"
    assert found["t.one.way"] == ("none", "") and len(found) == 8


def test_a_table_in_several_places_is_written_once() -> None:
    written = page(Whole, {"game": Outside}, Exam)
    assert written.count("| `amount` | 3 | How much. On two lines. |") == 1
    assert "| `game.one` | table | The first \\| table; see [data](data.md#formats). Keys:" in written
    assert written.endswith("|---|---|---|\n| `form` | — | Its form. |\n")
    assert written.count("Keys: [inside](#inside); here `amount = 4`.") == 2 and "### Inside" in written


GAME = """
from typing import Literal
from scope_jax.config import Section
from scope_jax.play.game import Game
class Options(Section):
    {docstring}
    way: Literal["left", "right"] = "left"
    {described}
GAME = Game("fork", Options, None, None, data=("answers",))
"""


def test_a_game_in_a_file_has_its_keys_described(tmp_path: Path) -> None:
    game = tmp_path / "fork.py"
    game.write_text(GAME.format(docstring='"""Which way."""', described='"""Where it turns."""'), encoding="utf-8")
    command = [sys.executable, "-m", "scope_jax", "keys", "--game", str(game)]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert shown.splitlines()[:2] == ["[fork]", "    Which way."]
    assert "fork.way = left\n    Where it turns. One of `left`, `right`." in shown
    listed = subprocess.run([*command, "fork.way", "--json"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(listed.stdout) == [
        {"key": "fork.way", "default": "left", "meaning": "Where it turns. One of `left`, `right`."}
    ]
    unknown = subprocess.run([*command, "fork.wey"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert unknown.returncode == 2 and "did you mean fork.way" in unknown.stderr


def test_every_key_is_read_somewhere() -> None:
    read = set(game.FILES)  # by their names, `Game.rows`
    for folder in ("scope_jax", "launch"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if path.parent.name != "config":
                read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    # Sections passed on as a whole with model_dump: their keys are fields of the receiving dataclass.
    for path in (ROOT / "sharding" / "mesh.py", ROOT / "retrieval" / "scann.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    unread = [key for key in names(Config) if key.rsplit(".", 1)[-1] not in read]
    assert unread == []


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *[f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")]]
)
def test_links_are_valid(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    files = [link for link in links if "://" not in link and (path.parent == ROOT or link not in GENERATED)]
    assert [link for link in files if not (path.parent / link).exists()] == []


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
    """In the column "here" of docs/index.md, what looks like a key of a card is one."""
    section = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split("## Coming from TRL")[1]
    ours = [line.split(" | ")[-1] for line in section.splitlines() if line.startswith("| ")]
    named = {key for cell in ours for key in re.findall(r"`([A-Za-z]+(?:\.[a-z_]+)+)`", cell)}
    known = {*names(Config), *names(RoleSection, "ROLE."), "episodes.jsonl"}
    assert len(named) > 20 and sorted(named - known) == []
    values = re.findall(r"`(\w+) = \"([\w-]+)\"`", "\n".join(ours))
    assert len(values) > 8
    for key, value in values:
        LossCard.model_validate({key: value, "dual_clip": 0.0})


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs and GitHub write them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_sources_refer_to_pages_and_headings_that_exist() -> None:
    """Error messages, docstrings and cards; MkDocs checks the links between pages."""
    pages = {path.name: anchors(path.read_text(encoding="utf-8")) for path in (ROOT / "docs").glob("*.md")}
    parts = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    sources = [path for path in (*parts, *ROOT.glob("*")) if path.suffix in {".py", ".toml", ".md", ".yml", ".sh"}]
    wrong = []
    for path in sources:
        for name, anchor in re.findall(r"docs/(\w+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
            if name not in pages or (anchor and anchor not in pages[name]):
                wrong.append(f"{path.relative_to(ROOT)}: {name}#{anchor}")
    assert len(sources) > 1000 and wrong == []
