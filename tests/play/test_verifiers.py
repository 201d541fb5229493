"""Task sets of verifiers, loaded and scored by the package itself; skipped where it is not installed."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.environments.verifiers_tasks import VerifiersTasks
from scope_jax.errors import UserError
from scope_jax.text.messages import Messages

SET = '''
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str = ""


class Words(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "words"

    @vf.tool
    def opposite(self, word: str) -> str:
        """The opposite of a word."""
        return {"hot": "cold"}.get(word, "unknown")


class OneTask(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        return {"turns": float(trace.num_turns), "tools": float(len(trace.tool_messages))}

    @vf.metric
    async def truncated(self, trace: vf.Trace) -> float:
        return float(trace.is_truncated)

    @classmethod
    def toolsets(cls, config):
        return [Words(vf.ToolsetConfig())]


class Config(vf.TasksetConfig):
    size: int = 2


class OneSet(vf.Taskset[OneTask, Config]):
    def load(self):
        for n in range(self.config.size):
            data = Data(prompt=f"Opposite of hot, {n}?", system_prompt="Be brief.", answer="cold")
            yield OneTask(data, self.config.task)


__all__ = ["OneSet"]
'''


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a task set as a module; its name."""
    pytest.importorskip("verifiers")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(name: str, *changes: tuple[str, str]) -> str:
        text = SET
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    return write


def test_rows_prompts_and_rewards(written):
    tasks = VerifiersTasks(written("set_a"), {"size": 3})
    rows = tasks.rows()
    assert len(tasks) == 3 and [row["question"] for row in rows] == [f"Opposite of hot, {n}?" for n in range(3)]
    assert len({row["key"] for row in rows}) == 3
    assert tasks.messages(1) == Messages("Opposite of hot, 1?", system="Be brief.")
    call = {"id": "c1", "type": "function", "function": {"name": "words_opposite", "arguments": '{"word": "hot"}'}}
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "cold"},
        {"role": "assistant", "content": "It is cold."},
    ]
    assert tasks.score(1, turns) == {
        "reward": 5.0,
        "rewards": {"right": 2.0, "turns": 2.0, "tools": 1.0},
        "metrics": {"truncated": 0.0},
    }
    said = [{"role": "assistant", "content": "warm"}]
    assert tasks.score(0, said, cut=True)["rewards"] == {"right": 0.0, "turns": 1.0, "tools": 0.0}
    assert tasks.score(0, said, cut=True)["metrics"] == {"truncated": 1.0}
    assert tasks.score(0, [])["reward"] == 0.0  # an agent that could not speak


def test_toolsets_are_mcp_servers(written):
    tasks = VerifiersTasks(written("set_b"))
    (server,) = tasks.servers()
    (tool,) = server.tools()
    assert tool.name == "words_opposite" and tool.open is not None
    assert tool.schema["function"]["description"] == "The opposite of a word."
    with tool.open(np.random.default_rng(0)) as session:
        assert tool.run(session, word="hot") == "cold"
    server.close()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "(self, trace: vf.Trace) -> dict",
            "(self, trace: vf.Trace, runtime: vf.Runtime) -> dict",
            "reward 'parts', which",
        ),
        (
            "class OneTask(vf.Task[Data]):",
            "class OneTask(vf.Task[Data]):\n    NEEDS_CONTAINER = True",
            "need a container",
        ),
        ('answer="cold")', 'answer="cold", image="ubuntu")', r"need a container \(task 0\)"),
        (
            "class OneTask(vf.Task[Data]):",
            "class OneTask(vf.Task[Data]):\n    async def setup(self, trace, runtime):\n        pass\n",
            "prepares a runtime",
        ),
        (
            "class OneSet(vf.Taskset[OneTask, Config]):",
            "class OneSet(vf.Taskset[OneTask, Config]):\n    INFINITE = True",
            "limit",
        ),
        (
            '__all__ = ["OneSet"]',
            'class Own(vf.Env[vf.EnvConfig]):\n    pass\n\n\n__all__ = ["OneSet", "Own"]',
            "environment of",
        ),
    ],
)
def test_what_would_not_be_scored_as_meant_is_refused(written, request, old, new, sentence):
    name = written(f"set_{abs(hash(request.node.name))}", (old, new))
    with pytest.raises(UserError, match=sentence):
        VerifiersTasks(name)


def test_configs_and_names_that_are_wrong(written):
    with pytest.raises(UserError, match="no task set 'no-such-set'"):
        VerifiersTasks("no-such-set")
    with pytest.raises(UserError, match=r"config of the task set set_c is not valid \(size: "):
        VerifiersTasks(written("set_c"), {"size": "many"})
    with pytest.raises(UserError, match="has no tasks"):
        VerifiersTasks("set_c", {"size": 0})
    assert len(VerifiersTasks("set_c", {"size": 9}, limit=4)) == 4


def test_tools_that_share_state_are_refused(written):
    state = "class Seen(vf.State):\n    words: int = 0\n\n\nclass Words(vf.Toolset[vf.ToolsetConfig, Seen]):"
    tasks = VerifiersTasks(written("set_d", ("class Words(vf.Toolset[vf.ToolsetConfig]):", state)))
    with pytest.raises(UserError, match="tools Words, which share state"):
        tasks.servers()


def test_without_the_package_there_is_a_sentence(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(UserError, match=r"pip install 'scope-jax\[verifiers\]'"):
        VerifiersTasks("gsm8k")
