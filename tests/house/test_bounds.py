"""Values that no run could use are rejected when the card is read: the error names file, key and valid range."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import CardError, Config
from scope_jax.games import GAMES, _Unread, load_card
from scope_jax.games.scope import rules
from scope_jax.games.ssp import rules as ssp_rules
from scope_jax.play import judging, searching
from scope_jax.play.rubrics import settled_score
from scope_jax.play.tools import Agent, Rollout, single_turn
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.games import harness

SSP, SCOPE = Path("configs/ssp/atlas.toml"), Path("configs/scope/atlas.toml")
SECRET = "hunter2"
# Values that were once accepted: key=value, with a word of the error message.
FOUND = [
    ("train.batch_size=0", "at least 1"),
    ("train.batch_size=-4", "at least 1"),
    ("train.save_every=0", "at least 1"),
    ("rollout.search_threads=0", "at least 1"),
    ("learner.micro_batch_rows=-1", "at least 0"),
    ("learner.logprob_chunk=0", "at least 1"),
    ("data.limit=0", "at least 1"),
    ("data.min_searches=5", "at most max_searches"),
    ("ssp.verify_max_tokens=100000", "leaves nothing of rollout.max_length"),
    ("train.steps=-1", "at least 1"),
    ("train.steps=true", "a whole number"),
    ("train.keep=-1", "at least 1"),
    ("optimizer.learning_rate=-1", "above 0"),
    ("optimizer.learning_rate=1e30", "at most 1"),
    ("optimizer.learning_rate=nan", "finite"),
    ("optimizer.beta1=2", "below 1"),
    ("optimizer.max_grad_norm=-1", "above 0"),
    ("optimizer.max_grad_norm=0", "above 0"),
    ("ssp.solver.loss.kl_coef=-1", "at least 0"),
    ("ssp.solver.loss.kl_coef=nan", "finite"),
    ("ssp.solver.loss.advantage_eps=-1e-6", "at least 0"),
    ("ssp.solver.loss.clip_low=1.5", "at most 1"),
    ("ssp.solver.sampling.temperature=inf", "finite"),
    ("ssp.invalid_reward=nan", "finite"),
    ("scope.solver_reward.rubric=nan", "finite"),
    ("scope.challenger_reward.format=nan", "finite"),
    ("evaluate.temperature=inf", "finite"),
    ('evaluate.sets=[{name="a",path="x"},{name="a",path="y"}]', "called 'a'"),
    ("rollout.slots=0", "at least 1"),
    # accepted, and without any effect
    ("spice.corpus=false", "is the table of another game"),
    ("data.queries=queries.jsonl", "SSP does not read it"),
    ("ssp.solver.loss.rollout_weight=sequence", "has no effect without rollout_cap"),
    ("ssp.solver.sampling.temperature=0", "all the same"),
    ("optimizer.total_steps=100", "the end of a cosine"),
    ("train.stall_action=exit", "needs stall_timeout"),
    (f'judge={{url="http://me:{SECRET}@host/v1", model="m"}}', "api_key_env"),
]
# A hundred more, one per line.
NONSENSE = (Path(__file__).parent / "nonsense.txt").read_text(encoding="utf-8").splitlines()


def refused(override: str) -> str:
    """The error message for the Atlas card of the override's game."""
    card = SCOPE if override.startswith("scope.") else SSP
    with pytest.raises(CardError) as caught:
        load_card(card, [override])
    text = str(caught.value)
    assert text.startswith(str(card)) and text.endswith(".") and "\n" not in text
    return text


@pytest.mark.parametrize(("override", "words"), FOUND)
def test_known_bad_values_are_refused(override: str, words: str) -> None:
    text = refused(override)
    assert words in text and override.partition("=")[0].rpartition(".")[2] in text
    assert SECRET not in text


def test_there_are_a_hundred_more_bad_values_without_duplicates() -> None:
    assert len(NONSENSE) == len(set(NONSENSE)) >= 100 and not set(NONSENSE) & {override for override, _ in FOUND}


@pytest.mark.parametrize("override", NONSENSE)
def test_more_bad_values_are_refused(override: str) -> None:
    text = refused(override)
    key = override.partition("=")[0].rpartition(".")[2]
    assert f"{key}" in text.partition(" with --set ")[2].partition(": ")[2] or "the card" in text
    assert "Input should" not in text and "Value error" not in text


@pytest.mark.parametrize(
    "override",
    ["train.steps", "=3", f"judge.url:http://me:{SECRET}@host", "train.steps=\udc80", "system.steps=3", "a=1\nb=2"],
)
def test_broken_overrides(override: str) -> None:
    assert SECRET not in refused(override)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000, "-0x", "2020-01-01", "{a=1}"])
def test_missing_values_and_wrong_types(value: str) -> None:
    assert "`train.steps` must be a whole number." in refused(f"train.steps={value}")


@pytest.mark.parametrize("text", ["seed = " + "9" * 5000, "seed = " + "[" * 5000, "seed = '\udc80'", "seed 3"])
def test_files_that_are_not_cards(text: str, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(CardError, match=r"card\.toml: not (valid TOML|UTF-8)"):
        load_card(path)


# ------------------------------------------------------------------------------------------------------- by the schema
def nodes(schema: dict[str, Any], node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, JSON schema) of every value that is not a table, also in nested tables."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for inner in node.get("anyOf", []):
        yield from nodes(schema, inner, path)
    for key, inner in node.get("properties", {}).items():
        yield from nodes(schema, inner, f"{path}.{key}".removeprefix("."))
    items = node.get("items", {})
    for inner in (*node.get("prefixItems", []), *([items] if isinstance(items, dict) and items else [])):
        yield from nodes(schema, inner, f"{path}[]")
    if isinstance(extra := node.get("additionalProperties"), dict):
        yield from nodes(schema, extra, f"{path}.*")
    if node.get("type") in ("integer", "number", "boolean", "string"):
        yield path, node


def test_every_number_of_every_table_has_bounds_on_both_sides() -> None:
    schemas = [Config.model_json_schema(), *(game.options.model_json_schema() for game in GAMES.values())]
    values = [found for schema in schemas for found in nodes(schema, schema)]
    numbers = [(path, node) for path, node in values if node["type"] in ("integer", "number")]
    assert len(numbers) > 100
    without = [
        path
        for path, node in numbers
        if not {"minimum", "exclusiveMinimum"} & set(node) or not {"maximum", "exclusiveMaximum"} & set(node)
    ]
    assert without == []


def test_every_table_is_closed_strict_and_finite() -> None:
    def sections(kind: type) -> Iterator[type]:
        for inner in kind.__subclasses__():
            if inner is not _Unread:  # a card that nothing is run with
                yield inner
            yield from sections(inner)

    for section in sections(Config.__base__ or object):
        config: Any = vars(section)["model_config"]
        assert (config["extra"], config["strict"], config["allow_inf_nan"]) == ("forbid", True, False), section


# ------------------------------------------------------------------------------------------- choices outside of a card
def test_functions_refuse_a_choice_that_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="ungraded is 'typo'; give one of 'leave-out', 'zero'"):
        settled_score([True], [1.0], ungraded="typo", min_graded=0.5)
    with pytest.raises(ValueError, match="missing is 'typo'"):
        rules.mean_score([1.0], [True], "typo")
    with pytest.raises(ValueError, match="unit is 'typo'"):
        ssp_rules.units(["x"], "typo")
    with pytest.raises(ValueError, match="unit is 'typo'"):
        ssp_rules.render(["x"], "typo")
    with pytest.raises(ValueError, match="grader is 'typo'"):
        judging.grade("typo", "none", lambda messages: [], [])
    ((said,),) = harness.world().play("eval", [Rollout("0", Messages("?"))], Agent("actor", single_turn(0.0, 9)))
    with pytest.raises(ValueError, match="rule is 'typo'"):
        searching.keeps_format(said, dialects.load("xml"), "answer", "typo")
