"""Functions that a model has written: their values as literals, and what programs do to keep others from theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scope_jax.config import SandboxSection
from scope_jax.environments import functions
from scope_jax.environments.functions import banned, outputs, same_values
from scope_jax.environments.sandbox import Sandbox
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError
from tests.games.harness import ScriptedTools

CARD = SandboxSection(seconds=3.0, workers=4)
TOOLS = ScriptedTools(lambda now: "")


@pytest.fixture(scope="module", autouse=True)
def started() -> Iterator[None]:
    try:
        functions.service(CARD).start()
    except UserError as error:
        pytest.skip(str(error))
    yield
    functions.service(CARD).close()


def of(program: str, text: str = "1", repeats: int = 1) -> str | None:
    return outputs(CARD, TOOLS, [(program, [text])], repeats=repeats)[0][0]


ECHO = "def f(*args, **words): return args, words"
COUNTER = "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n"


@pytest.mark.parametrize(
    ("program", "text", "value"),
    [
        ("def f(x): return x + 3", "4", "7"),
        ("f = lambda x: [x, 'é', {1: None}]", " -2.5 ", "[-2.5, '\\xe9', {1: None}]"),
        (ECHO, "1, (2, [3]), k={'a': 1} # c", "((1, (2, [3])), {'k': {'a': 1}})"),
        (ECHO, "", "((), {})"),
        ("def f(x): print(x); x.append(1); return x", "[0]", "[0, 1]"),  # changes its argument
        ("import collections\ndef f(x): return {c for c in x}", "'aab'", None),  # a set of letters, see below
        ("def f(x): return 1 / 0", "1", None),
        ("def f(x): return g(x)", "1", None),
        ("def g(x): return x", "1", None),
        ("def f(x) return x", "1", None),
        ("def f(x): raise SystemExit", "1", None),
        ("def f(x): return f(x)", "1", None),
        ("def f(x): return object()", "1", None),  # no literal
        ("def f(x): return float('inf')", "1", None),
        ("def f(x): return float('nan')", "1", None),
        ("def f(x): return 'a' * x", "398", repr("a" * 398)),
        ("def f(x): return 'a' * x", "399", None),  # longer than 400
        ("def f(x): return x", "open('/etc/passwd')", None),
        ("def f(x): return x", "1) + f(2", None),
        ("def f(x): return x", "**{'x': 1}", None),
        ("def f(x): return x", "*[1]", None),
        ("def f(x): return x", "1\n)\nimport os\n(", None),
        ("def f(x): return x", "(" * 5000, None),
        ("def f(x): return x", "-" * 5000 + "1", None),
    ],
)
def test_a_value_is_a_literal_or_there_is_none(program: str, text: str, value: str | None) -> None:
    if "for c in x" in program:
        assert same_values(CARD, TOOLS, [([of(program, text)], ["{'b', 'a'}"])]) == [True]
    else:
        assert of(program, text) == value


def test_calls_that_differ_have_no_value() -> None:
    assert of(COUNTER) == "1" and of(COUNTER, repeats=2) is None
    assert of("l = []\ndef f(x):\n    l.append(x)\n    return l", repeats=2) is None
    assert of("import os\ndef f(x): return os.urandom(4)", repeats=2) is None
    assert of("def f(x): x.append(1); return x", "[]", repeats=3) == "[1]"


def test_a_program_that_tells_its_value_itself_tells_all_workers_the_same() -> None:
    """It replaces what makes its values a text, and so is asked once for both calls of a worker."""
    telling = "import json, os\njson.dumps = lambda values: {}\ndef f(x): return x"
    drawn = telling.format("f'[\"{os.urandom(4).hex()}\"]'")
    assert of(drawn) is not None and of(drawn, repeats=2) is None
    assert of(telling.format("'[\"7\"]'"), repeats=2) == "7"


def test_values_that_are_written_in_two_ways_agree() -> None:
    """A set of texts has another order in every process whose hashes are its own."""
    written = "'{1, 2}' if os.urandom(1)[0] % 2 else '{2, 1}'"
    program = f"import os\nclass Own(set):\n    def __repr__(self): return {written}\ndef f(x): return Own([1, 2])"
    assert of(program, repeats=3) in ("{1, 2}", "{2, 1}")


HOSTILE = (
    "import os\ndef f(x): os._exit(0) if x else 0\n    ",
    "def f(x):\n    while x: pass\n    return 5",
    "import os\ndef f(x):\n    if x: os.abort()\n    return 5",
    "def f(x): return 'a' * (10**11 * x) or 5",
    "import os\ndef f(x):\n    os.write(1, b'[\"9\"]\\n')\n    return 5",
    "import sys\ndef f(x):\n    while x: os.write(1, b'a' * 65536)\n    return 5",
    "import os, builtins\nbuiltins.len = lambda x: 0\ndef f(x): return 5",
    "import ast\nast.literal_eval = lambda x: 9\ndef f(x): return 5",
    "import json, os\ndef f(x):\n    os.write(1, b'[' * 60000 + b'\\n')\n    os._exit(0)",
)


@pytest.mark.slow  # endless calls run until their time is up
def test_a_program_spoils_no_other_and_a_call_no_other_call() -> None:
    programs = ("def f(x): return x + 1", *HOSTILE)
    values = outputs(CARD, TOOLS, [(program, ["1", "0"]) for program in programs])
    by_program = {(p, x): own[int(x == "0")] for p, own in zip(programs, values, strict=True) for x in ("1", "0")}
    assert by_program["def f(x): return x + 1", "1"] == "2"
    assert by_program[HOSTILE[1], "1"] is None and by_program[HOSTILE[1], "0"] == "5"
    assert by_program[HOSTILE[2], "1"] is None and by_program[HOSTILE[2], "0"] == "5"
    assert by_program[HOSTILE[4], "1"] == "5"  # what it has printed is not its value
    assert by_program[HOSTILE[6], "1"] in (None, "5") and by_program[HOSTILE[8], "0"] is None
    assert of("def f(x): return x + 1") == "2"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("[1, 2]", " [1,2] ", True),
        ("1", "1.0", True),
        ("{1, 2}", "{2, 1}", True),
        ("'a'", '"a"', True),
        ("'a'", "a", False),
        ("2", "1 + 1", False),  # no literal
        ("2", "__import__('os').getpid()", False),
        ("1", "[" * 3000, False),
        ("", "", False),
        ("1", "1" * 5000, False),
    ],
)
def test_equal_values(one: str, other: str, equal: bool) -> None:
    assert same_values(CARD, TOOLS, [([one], [other]), ([other], [one])]) == [equal, equal]


def test_many_values_and_none() -> None:
    cases = [([str(n), "1"], [str(n % 7), "1"]) for n in range(200)]
    assert sum(same_values(CARD, TOOLS, cases)) == 7
    cases = [
        ([], []),
        (["1"], []),
        ([], ["1"]),
        ([None], ["None"]),
        (["1", None], ["1", "2"]),
        (["1", "2"], ["1", "2"]),
    ]
    assert same_values(CARD, TOOLS, cases) == [True, False, False, False, False, True]
    assert outputs(CARD, TOOLS, []) == [] and same_values(CARD, TOOLS, []) == []
    assert outputs(CARD, TOOLS, [("", []), ("def f(x): return x", ["1", "2", "1"])]) == [[], ["1", "2", "1"]]


@pytest.mark.parametrize(
    ("program", "used"),
    [
        ("import os", False),  # only some names of it are banned
        ("import random", True),
        ("import random as r", True),
        ("from random import randint", True),
        ("import os.path", True),
        ("import os.path as p", True),
        ("from os import path", True),
        ("from os import path as p", True),
        ("from os.path import join", True),
        ("from os import *", True),
        ("import os\nos.path.join('a')", True),
        ("import os as o\ndef f(x): return o.path", True),
        ("import os\nx = os.getcwd()", False),
        ("import numpy.random", True),
        ("import numpy as np\ndef f(x): return np.random.rand()", True),
        ("import randomness", False),
        ("x.random", False),
        ("def f(x): import random", True),
        ("import math\nrandom = 1\nrandom.real", False),
        ("import (", False),  # no program: it has no value either
    ],
)
def test_what_a_program_may_not_use(program: str, used: bool) -> None:
    assert banned(program, ("random", "os.path")) is used


def test_a_sandbox_that_runs_nothing_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(sandbox: Sandbox, code: str) -> str:
        raise ToolError("no process can be started")

    monkeypatch.setattr(Sandbox, "run", refuse)
    with pytest.raises(UserError, match="runs no program any more"):
        of("def f(x): return x")
