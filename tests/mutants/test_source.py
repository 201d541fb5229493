"""Which changes are drawn, and that they are found again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools.mutants.changes import KINDS
from tools.mutants.draw import LEAST, draw, shares
from tools.mutants.source import Mutant, find, find_in, layer, mutants, replaced

FILE = "scope_jax/play/module.py"


def pairs(text: str) -> set[tuple[str, str]]:
    return {(mutant.before, mutant.after) for mutant in mutants(FILE, text)}


def body(*lines: str) -> str:
    return "\n    ".join(("def f(a, b):", *lines)) + "\n"


CHANGES = {
    "return a < b": {("a < b", "(a <= b)")},
    "return a == b": {("a == b", "(a != b)")},
    "return a + b": {("a + b", "(a - b)")},
    "return a and b": {("a and b", "(a or b)")},
    "return not a": {("not a", "a")},
    "return -a": {("-a", "a")},
    "return 3": {("3", "4"), ("3", "2")},
    "return 0": {("0", "1")},
    "return 0.5": {("0.5", "1.0")},
    "return True": {("True", "False")},
    "return a == 'word'": {("a == 'word'", "(a != 'word')"), ("'word'", "'word_'")},
    "return a['key']": {("'key'", "'key_'")},
    "return {'key': b}": {("'key'", "'key_'")},
    "return a if b else a": {("b", "(not b)")},
    "return [n for n in a if n]": {("n", "(not n)")},
    "a.clear()": {("a.clear()", "pass")},
    "return max(a, b)": {("max(a, b)", "a")},
    "return a(key=b)": {("a(key=b)", "(a())")},
    "a += b": {("a += b", "a -= b")},
}


@pytest.mark.parametrize(("line", "expected"), CHANGES.items(), ids=CHANGES)
def test_the_changes_of_a_line(line: str, expected: set[tuple[str, str]]) -> None:
    assert pairs(body(line)) == expected


def test_early_returns_and_raises_are_removed_and_the_last_return_is_not() -> None:
    text = body("if a:", "    return b", "if b:", "    raise ValueError('no', 3)", "return a")
    assert {before for before, after in pairs(text) if after == "pass"} == {"return b", "raise ValueError('no', 3)"}


DEAD = (
    '"""Text."""',
    "from __future__ import annotations",
    "__all__ = ['a']",
    "T = TypeVar('T', bound=int)",
    "def f(a: dict[3, 'b']) -> Literal[4]: ...",
    "a: Literal[3]",
    "assert a > 3",
    "log.info('message', 3)",
    "if TYPE_CHECKING:\n    a = 3",
    "@cache(size=3)\ndef f(): ...",
    "a = f'{b[3]} of {c + 1}'",
    "a = 'text'",
)


@pytest.mark.parametrize("text", DEAD)
def test_what_is_never_changed(text: str) -> None:
    assert mutants(FILE, text + "\n") == []


def test_messages_of_errors_and_help_are_never_changed() -> None:
    text = body("raise UserError('a' + str(3))") + "b = option(help='a' * 3)\n"
    assert pairs(text) == {("raise UserError('a' + str(3))", "pass"), ("option(help='a' * 3)", "(option())")}


def changed(text: str, mutant: Mutant) -> str:
    node = find_in(text, mutant)
    assert node is not None
    return replaced(text, node, mutant.after)


def test_a_mutant_is_found_after_lines_have_moved_and_reformatted() -> None:
    text = body("π = 'ü'; c = a[1] < b", "return π, a[1] < b")
    second = [mutant for mutant in mutants(FILE, text) if mutant.before == "a[1] < b"][1]
    assert (second.occurrence, second.name, second.line) == (1, "f", 3)
    assert changed(text, second) == body("π = 'ü'; c = a[1] < b", "return π, (a[1] <= b)")
    moved = "import os\n\n" + body("π = 'ü'; c = a[1] < b", "return (π, a[1]", "        < b)")
    assert changed(moved, second) == "import os\n\n" + body("π = 'ü'; c = a[1] < b", "return (π, (a[1] <= b))")


def test_a_mutant_is_gone_with_its_code_and_found_in_another_file(tmp_path: Path) -> None:
    folder = tmp_path / "scope_jax" / "play"
    for package in ("scope_jax/play", "models", "rollouts", "retrieval", "sharding"):
        (tmp_path / package).mkdir(parents=True)
    mutant = mutants(FILE, body("return a < b"))[0]
    (folder / "module.py").write_text(body("return a <= b"))
    assert find(tmp_path, mutant) is None
    (folder / "module.py").unlink()
    (tmp_path / "models" / "other.py").write_text("a = 3\n" + body("return a < b"))
    place = find(tmp_path, mutant)
    assert place is not None
    assert (place.path, place.node.lineno) == ("models/other.py", 3)


def test_layers_of_files() -> None:
    files = ("scope_jax/games/ssp/game.py", "scope_jax/errors.py", "models/decoder/moe.py", "rollouts/engine.py")
    assert list(map(layer, files)) == ["games", "errors", "models", "rollouts"]


def test_small_layers_have_their_least_and_the_others_a_share() -> None:
    assert shares({"a": 6000, "b": 3000, "c": 10}, 98) == {"a": 60, "b": 30, "c": LEAST}


def test_a_draw_is_the_same_for_a_seed_has_one_mutant_for_a_line_and_all_kinds(tmp_path: Path) -> None:
    for package in ("scope_jax/play", "models", "rollouts", "retrieval", "sharding"):
        (tmp_path / package).mkdir(parents=True)
    lines = [line for line in CHANGES if line != "return a == 'word'"]
    for package in ("scope_jax/play", "models"):
        (tmp_path / package / "module.py").write_text("".join(map(body, lines)))
    drawn = draw(tmp_path, 0, 2 * LEAST)
    assert drawn == draw(tmp_path, 0, 2 * LEAST) != draw(tmp_path, 1, 2 * LEAST)
    assert Counter(mutant.layer for mutant in drawn) == {"play": LEAST, "models": LEAST}
    assert len({(mutant.file, mutant.line) for mutant in drawn}) == 2 * LEAST
    assert {mutant.kind for mutant in drawn} == set(KINDS)
