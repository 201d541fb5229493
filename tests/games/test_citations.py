"""Every value in the papers' cards cites its source, and equals the value there.

    key = value    # place, place (words): words; place; place: other value; words

The first clause names the sources of the value, which must all have it. "not stated" comes first if the paper does not
mention the key. A later clause that begins with a place must have the value as well, or name the other value that is
there; places may be mentioned freely in parentheses only. "paper as quoted": by others, who do not tell the place in
it. The values by place: tests/games/facts.py.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.games import facts
from tests.games.facts import Facts

ROOT = Path(__file__).parents[2]
CARDS = [ROOT / "configs" / f"{name}.toml" for name in facts.RESULTS]
GAMES: dict[str, Callable[[str], Facts]] = {
    "ssp": facts.ssp,
    "scope": facts.scope,
    "spice": facts.spice,
    "spell": facts.spell,
    "score": facts.score,
    "r_zero": facts.r_zero,
    "spiral": facts.spiral,
    "dr_zero": facts.dr_zero,
    "absolute_zero": facts.absolute_zero,
}
MAIN = {
    "ssp": "Table 4",
    "scope": "Table 9",
    "spice": "Table 5",
    "spell": "section 5.1",
    "score": "Table 2",
    "r_zero": "App. A",
    "spiral": "released code",
    "dr_zero": "released code",
    "absolute_zero": "paper as quoted",  # its table of hyperparameters was not at hand
}  # where the hyperparameters are
NOT_STATED = "not stated"
CODES = ("released code", "README", "veRL", "Search-R1", "Oat")  # sources other than papers
PLACE = (
    r"(?:Table \d+|section \d(?:\.\d)?|App\. (?:[A-H]|\d{1,2})|[A-H]\.\d|Eq\. \(\d+\)|Algorithm 1|"
    rf"paper as quoted|{NOT_STATED}|{'|'.join(CODES)})"
)
CLAUSE = re.compile(rf"({PLACE}(?:, {PLACE})*)(?: \(.*?\))?(?:: (.+))?")


def lines(text: str) -> Iterator[tuple[str, Any, str]]:
    """(key, value, comment) of every line that sets a value; one key a line."""
    table = ""
    for line in text.splitlines():
        if header := re.match(r"\[+([\w.]+)\]+", line):
            table = f"{header[1]}."
        elif "=" in line and not line.startswith("#"):
            ((key, value),) = tomllib.loads(line).items()
            yield table + key, value, _comment(line)


def _comment(line: str) -> str:
    """The comment after the value: from the first # before which the line is valid TOML."""
    for mark in re.finditer("#", line):
        try:
            tomllib.loads(line[: mark.start()])
        except tomllib.TOMLDecodeError:
            continue
        return line[mark.end() :].strip()
    return ""


def complaint(key: str, value: Any, comment: str, stated: Facts) -> str | None:
    """Why the comment is not a valid citation of this value; None if it is."""
    first, *others = comment.split("; ")
    cited = CLAUSE.fullmatch(first)
    if cited is None:
        return "cites no place"
    places = cited[1].split(", ")
    if NOT_STATED in places:
        said = [place for place, table in stated.items() if place not in CODES and key in table]
        if said:
            return f"is stated in {', '.join(said)}"
        places = []
    for clause in others:
        later = CLAUSE.fullmatch(clause)
        if later is None and re.search(PLACE, re.sub(r"\(.*?\)", "", clause)):
            return f"has a clause that names a place in passing: {clause}"
        if later and later[2] is None:
            places += later[1].split(", ")
        elif later and (wrong := _contrast(key, value, later[1], later[2], stated)):
            return wrong
    for place in places:
        if key not in stated.get(place, {}):
            return f"is not in {place}"
        if stated[place][key] != value:
            return f"is {stated[place][key]} in {place}"
    return None


def _contrast(key: str, value: Any, place: str, words: str, stated: Facts) -> str | None:
    try:
        other = tomllib.loads(f"v = {words.partition(' (')[0]}")["v"]
    except tomllib.TOMLDecodeError:
        other = words.partition(" (")[0]
    if key not in stated.get(place, {}) or stated[place][key] != other:
        return f"is {stated.get(place, {}).get(key, 'not stated')} in {place}, not {other}"
    return f"is no other value than {place}'s" if other == value else None


def settled(path: Path) -> dict[str, Any]:
    """The values of a card and of the card that it extends."""
    own = {key: value for key, value, _ in lines(path.read_text(encoding="utf-8"))}
    return (settled(path.parent / own["extends"]) if "extends" in own else {}) | own


def statements(path: Path) -> Facts:
    return GAMES[path.parent.name](path.stem)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_value_equals_the_one_at_its_cited_source(path: Path):
    found = {
        key: wrong
        for key, value, comment in lines(path.read_text(encoding="utf-8"))
        if key not in ("extends", "system", "evaluate.sets.name", "evaluate.sets.path")
        and (wrong := complaint(key, value, comment, statements(path)))
    }
    assert found == {}


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_value_of_the_main_table_is_in_the_card(path: Path):
    """No value of the table of hyperparameters is left to a default, and the resolved card has that value."""
    table, values = statements(path)[MAIN[path.parent.name]], settled(path)
    assert sorted(set(table) - set(values)) == []
    assert {key: values[key] for key, stated in table.items() if stated != values[key]} == {}


def test_every_paper_card_is_checked():
    with_paper_models = {path for path in (ROOT / "configs").glob("*/*.toml") if re.search(r"\db(-|$)", path.stem)}
    assert with_paper_models == set(CARDS)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_results_in_the_header_are_the_papers(path: Path):
    text = path.read_text(encoding="utf-8").split("\nsystem")[0]
    for table, (before, after) in facts.RESULTS[f"{path.parent.name}/{path.stem}"].items():
        assert re.search(rf"{table}\b[^:]*?[\s\S]{{0,80}}?: {before} -> {after}\b", text), table


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("kl_coef = 0.02       # Table 4", "is 0.01 in Table 4"),
        ("kl_coef = 0.01", "cites no place"),
        ("kl_coef = 0.01       # as usual", "cites no place"),
        ("kl_coef = 0.01       # Table 5", "is not in Table 5"),
        ("kl_coef = 0.01       # not stated", "is stated in Table 4"),
        ("clip_high = 0.28     # not stated; released code", "is stated in A.1"),
        ("clip_high = 0.28     # released code; A.1: 0.2", "is 0.285 in released code"),
        ("clip_high = 0.285    # released code; A.1: 0.3", "is 0.2 in A.1, not 0.3"),
        ("clip_high = 0.285    # released code; A.1: 0.2 (veRL's default)", None),
        ('kl = "k3"            # Eq. (4); released code', "is k3-plain in released code"),
        ('kl = "k3"            # Eq. (4); released code: k3-plain', None),
        ('kl = "k3-plain"      # Eq. (4)', "is OneOf(values=('k1', 'k2', 'k3')) in Eq. (4)"),
        ("mini_batches = 2     # Table 4: 256 / 128; a word more", None),
    ],
)
def test_valid_and_invalid_citations(line: str, wrong: str | None):
    ((key, value, comment),) = lines(f"[ssp.solver.loss]\n{line}")
    assert complaint(key, value, comment, facts.ssp("qwen2.5-7b")) == wrong


@pytest.mark.parametrize(
    ("card", "line", "wrong"),
    [
        ("llama3.1-8b", "seeds = 64 # released code", None),
        ("llama3.1-8b", "seeds = 256 # released code", "is 64 in released code"),
        ("qwen2.5-7b", "seeds = 64 # released code", "is 256 in released code"),
        ("llama3.1-8b", "several_functions = false # not stated; released code", "is True in released code"),
        ("qwen2.5-14b", "several_functions = true # released code", "is False in released code"),
    ],
)
def test_the_facts_of_a_card_are_those_of_its_script(card: str, line: str, wrong: str | None):
    ((key, value, comment),) = lines(f"[absolute_zero]\n{line}")
    assert complaint(key, value, comment, facts.absolute_zero(card)) == wrong


def test_a_template_is_cited_by_what_its_prompts_end_with(tmp_path: Path):
    stated = facts.absolute_zero("qwen2.5-7b")["released code"]["model.chat_template"]
    (tmp_path / "user-assistant.jinja").write_text("{{ messages[0]['content'] }}\n\nAssistant:")
    assert stated != str(tmp_path / "user-assistant.jinja")
    assert stated == "configs/absolute_zero/user-assistant.jinja"


def test_a_comment_begins_after_the_value():
    assert list(lines('a = "x # y"  # not stated')) == [("a", "x # y", "not stated")]


# ------------------------------------------------------------------------------------------------- as in the papers
@pytest.mark.parametrize(
    ("paper", "rows"),
    [
        ("ssp.txt", facts.ROWS_SSP_4),
        ("scope-2605.31433.txt", facts.ROWS_SCOPE_9),
        ("spice-2510.24684.txt", facts.ROWS_SPICE_5),
    ],
    ids=["ssp", "scope", "spice"],
)
def test_rows_equal_the_papers_text(shared_data: Path, paper: str, rows: dict[str, Any]):
    path = shared_data.parent / "papers" / paper
    if not path.is_file():
        pytest.skip(f"{paper} is not there")
    printed = path.read_text(encoding="utf-8").replace("\\times 10^{-6}", "e-6").replace("\\times 10^{-3}", "e-3")
    table = [re.sub(r"(?<=\d),(?=\d{3})", "", re.sub(r"\\d?dagger|,\\", " ", line)) for line in printed.splitlines()]
    for name, value in rows.items():
        numbers = {
            tuple(float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-\d+)?", rest))
            for line in table
            if (rest := line.partition(name)[2])
        }
        assert (value if isinstance(value, tuple) else (value,)) in numbers, (name, numbers)
