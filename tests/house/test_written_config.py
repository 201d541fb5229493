"""The config.toml of a run is valid TOML that reads back as the same config, whatever its values."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from scope_jax.config import CardError, Config
from scope_jax.games import GAMES, load_card, parse_config
from scope_jax.run.config_file import differing, fingerprint, to_toml
from tests.house.test_bounds import nodes

SCHEMA = Config.model_json_schema()
LEAVES = [(path, node) for path, node in nodes(SCHEMA, SCHEMA) if "*" not in path and "[]" not in path]
CARDS = {name: tomllib.loads(Path(f"configs/{name}/atlas.toml").read_text()) for name in ("ssp", "scope", "spice")}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
CONTROL = 'a "b" \\ \t\x7f\x85\u2028 é 😀'


def value_of(node: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the JSON schema of a key allows."""
    if "enum" in node or "const" in node:
        return st.sampled_from(node.get("enum", [node.get("const")]))
    low, high = node.get("minimum", node.get("exclusiveMinimum")), node.get("maximum", node.get("exclusiveMaximum"))
    match node["type"]:
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(low, high)
        case "number":
            above, below = "exclusiveMinimum" in node, "exclusiveMaximum" in node
            return st.floats(low, high, exclude_min=above, exclude_max=below)
    return st.from_regex(node["pattern"], fullmatch=True) if "pattern" in node else TEXT


def put(table: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    name, _, rest = path.partition(".")
    return table | {name: put(table.get(name, {}), rest, value) if rest else value}


@st.composite
def changed_cards(draw: st.DrawFn) -> dict[str, Any]:
    """An Atlas card with a few random changes allowed by the schema, and arbitrary strings for string keys."""
    game = draw(st.sampled_from(sorted(CARDS)))
    table, unread = CARDS[game], {*GAMES} - {game}
    leaves = [(path, node) for path, node in LEAVES if path.partition(".")[0] not in unread]
    for path, node in draw(st.lists(st.sampled_from(leaves), max_size=4)):
        table = put(table, path, draw(value_of(node)))
    kwargs = st.dictionaries(TEXT, st.one_of(st.booleans(), st.integers(), TEXT), max_size=3)
    table = put(table, "model.chat_template_kwargs", draw(kwargs))
    names = st.text(st.characters(categories=["L", "N"], include_characters="_.-"), min_size=1, max_size=4)
    sets = draw(st.dictionaries(names, TEXT.filter(bool), max_size=2))
    return put(table, "evaluate.sets", [{"name": name, "path": path} for name, path in sets.items()])


@settings(max_examples=15, deadline=None)
@given(table=changed_cards())
def test_any_config_reads_back_unchanged(table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    check_reads_back(table, tmp_path_factory)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(table=changed_cards())
def test_many_configs_read_back_unchanged(table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    check_reads_back(table, tmp_path_factory)


def check_reads_back(table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        cfg = parse_config(table, "drawn")
    except CardError:
        reject()  # keys that contradict each other; hypothesis fails if this happens too often
    path = tmp_path_factory.getbasetemp() / "drawn.toml"
    path.write_text(to_toml(cfg), encoding="utf-8")
    again = load_card(path)
    assert again == cfg and differing(again, cfg) == [] and fingerprint(again) == fingerprint(cfg)


@pytest.mark.parametrize(
    "kwargs", [{"enable thinking": True}, {"": 1}, {CONTROL: CONTROL}, {"a.b": "a\nb"}, {"é": "😀"}, {"#": "["}]
)
def test_arbitrary_keys_and_strings(kwargs: dict[str, Any], tmp_path: Path) -> None:
    cfg = parse_config(put(CARDS["ssp"], "model.chat_template_kwargs", kwargs), "a card")
    (tmp_path / "config.toml").write_text(to_toml(cfg), encoding="utf-8")
    assert load_card(tmp_path / "config.toml").model.chat_template_kwargs == kwargs
