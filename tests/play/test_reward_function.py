"""A user's reward function: what it gets, what it may return, and a process that a call cannot take along."""

import time
from pathlib import Path

import pytest

from scope_jax.errors import UserError
from scope_jax.grading.reward_function import RewardFunction

GIVEN = {"prompt": "1 + 1", "completion": "2", "answer": "2"}


@pytest.fixture
def function(tmp_path):
    opened = []

    def made(body: str, seconds: float = 20.0) -> RewardFunction:
        file = tmp_path / f"reward_{len(opened)}.py"
        file.write_text(body, encoding="utf-8")
        opened.append(RewardFunction(str(file), seconds))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


def returning(expression: str) -> str:
    return f"def reward(prompt, completion, answer, **row):\n    return {expression}\n"


def test_it_gets_the_row_and_imports_what_lies_beside_it(function, tmp_path):
    (tmp_path / "beside.py").write_text("FACTOR = 0.5\n", encoding="utf-8")
    body = "import beside\nprint('imported')\n" + returning(
        "beside.FACTOR * (prompt + completion + answer == '1 + 122') + row['level']"
    )
    assert function(body).value(GIVEN | {"level": 2, "any name": None}, "f, line 1") == 2.5


def test_messages_numbers_and_objects_arrive_as_they_are(function):
    given = {"prompt": [{"role": "user", "content": "ä"}], "completion": "\ud7ff\n", "answer": {"a": [1, 2.5, None]}}
    body = returning("prompt == [{'role': 'user', 'content': 'ä'}] and answer == {'a': [1, 2.5, None]}")
    assert function(body).value(given, "f, line 1") == 1.0


@pytest.mark.parametrize(
    ("expression", "value"), [("True", 1.0), ("-3", -3.0), ("__import__('numpy').float32(2)", 2.0)]
)
def test_numbers_of_any_kind_are_rewards(function, expression, value):
    assert function(returning(expression)).value(GIVEN, "f, line 1") == value


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (returning("None"), "returns None, not a number"),
        (returning("'1'"), "returns '1', not a number"),
        (returning("float('nan')"), "returns nan"),
        (returning("float('inf')"), "returns inf"),
        (returning("1 / 0"), r"raises ZeroDivisionError in line 2 \(division by zero\)"),
        (returning("row['level']"), r"raises KeyError in line 2 \('level'\)"),
        (returning("__import__('sys').exit(1)"), r"raises SystemExit in line 2 \(1\)"),
        (returning("__import__('os')._exit(3)"), "ends its process with status 3"),
        ("def reward(prompt):\n    return 1\n", r"raises TypeError \(reward\(\) got an unexpected keyword"),
    ],
)
def test_what_is_no_reward_names_the_row(function, body, said):
    with pytest.raises(UserError, match=rf"^rows.jsonl, line 7: reward of .*reward_0.py {said}.*; correct it"):
        function(body).value(GIVEN, "rows.jsonl, line 7")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def rewards():\n    pass\n", r"NameError \(it defines no function reward\(prompt"),
        ("import no_such_module\n", r"ModuleNotFoundError in line 1 \(No module named 'no_such_module'\)"),
        ("def reward(:\n", r"SyntaxError \("),
        ("raise SystemExit(3)\n", r"SystemExit in line 1 \(3\)"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(function, body, said):
    with pytest.raises(UserError, match=rf"reward_0.py cannot be used: {said}.*; correct it\.$"):
        function(body).value(GIVEN, "f, line 1")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"none\.py does not exist; correct its path"):
        RewardFunction(str(tmp_path / "none.py"), 1.0).value(GIVEN, "f, line 1")


def is_running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", ["sleep", "deaf"])
def test_a_call_that_is_late_has_no_value_and_the_next_one_does(function, tmp_path, how):
    body = f"""
import os, signal, subprocess, time
def reward(prompt, completion, answer, **row):
    if completion != "2":
        child = subprocess.Popen(["sleep", "600"])
        open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
        if completion == "deaf":
            signal.signal(signal.SIGALRM, lambda *_: None)
        while True:
            time.sleep(1)
    return 1.0
"""
    called = function(body, seconds=2.0)
    begun = time.monotonic()
    assert called.value(GIVEN | {"completion": how}, "f, line 1") is None
    assert time.monotonic() - begun < 60
    assert called.value(GIVEN, "f, line 1") == 1.0
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not is_running(child):
            return
        time.sleep(0.1)
    raise AssertionError("what the function has started is still there")


def test_a_loop_that_never_waits_ends_by_itself(function):
    called = function(returning("sum(iter(int, 1))"), seconds=0.5)
    assert called.value(GIVEN, "f, line 1") is None
