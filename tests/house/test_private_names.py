"""A name with a leading underscore belongs to the file that defines it: no other file reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("scope_jax", "models", "rollouts", "retrieval", "sharding", "launch", "benchmarks")
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}  # public in spite of their names
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller", "object"}  # `mock.patch.object`
# What other libraries give under no other name: where it is read.
OF_LIBRARIES = {
    "os._exit": "run/processes.py run/stopping.py run/performance.py multihost/coordinator.py peers/worker.py "
    "isolation/zygote.py isolation/cells.py",
    "jax._src": "multihost/runtime.py kernels/cudnn.py",
    "cudnn._dot_product_attention": "kernels/cudnn.py",
    "ClusterEnv._cluster_types": "multihost/runtime.py",
    "orbax.checkpoint._src": "run/checkpoint_writer.py",
    "typer._click": "cli/program.py",
    "._fingerprint": "data/corpus.py retrieval/clusters/folder.py",
    "config._compile_all_devices": "benchmarks/peers/plain_torch.py",
    "trainer._": "benchmarks/peers/trl_grpo.py benchmarks/curves/gradients.py",
    "params._get_key_and_transform_mapping": "benchmarks/curves/gradients.py",
}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NAMED_TUPLE


def name_of(node: ast.AST | None) -> str | None:
    """Of a plain name."""
    return node.id if isinstance(node, ast.Name) else None


def definitions(tree: ast.AST) -> set[str]:
    """Names that a file gives to functions, classes, variables, and to attributes of its own objects."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and name_of(node.value) == "self":
            found.add(node.attr)
    return found


def objects(tree: ast.AST) -> set[str]:
    """Expressions whose private names a file may read: its own classes, their calls, variables that hold an object."""
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = {"self", "cls", "super()", *classes}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and name_of(node.annotation) in classes:
            found.add(node.arg)
        elif isinstance(node, ast.Call) and name_of(node.func) in classes:
            found.add(ast.unparse(node))
    assigned = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and (name_of(node.value) in found or (isinstance(node.value, ast.Call) and ast.unparse(node.value) in found))
    ]
    return found | {ast.unparse(target) for node in assigned for target in node.targets}


def foreign(text: str) -> Iterator[str]:
    """What a file reads of others' private names."""
    tree = ast.parse(text)
    known, holders = definitions(tree), objects(tree)
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            if node.attr not in known or ast.unparse(node.value) not in holders:
                names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            names = [value for value in given if called in BY_NAME and isinstance(value, str)]
        if any(map(private, names)):
            yield ast.unparse(node)


def test_no_file_reads_what_is_private_to_another():
    found, needed = [], set()
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for what in foreign(path.read_text(encoding="utf-8")):
                reasons = [(text, file) for text, files in OF_LIBRARIES.items() for file in files.split()]
                known = [(text, file) for text, file in reasons if text in what and name.endswith(file)]
                needed |= set(known)
                found += [] if known else [f"{name}: {what}"]
    assert found == []
    assert needed == {(text, file) for text, files in OF_LIBRARIES.items() for file in files.split()}


CLASS = "class Loop:\n    def __init__(self):\n        self._live = {}\n\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def lower(learner):\n    return learner._step.lower()\n", 1),
        ("def pages(needs):\n    return needs.engine._needed(3)\n", 1),
        ("from scope_jax.rollouts.online import _OnlineLoop\n", 1),
        ("import scope_jax.learner._hidden.sums\n", 1),
        ("def free(engine):\n    engine._slots = ()\n", 1),
        ("def state(loop):\n    return getattr(loop, '_state', None)\n", 1),
        ("class Online(DecodeLoop):\n    def f(self):\n        self._read()\n", 1),
        ("def first():\n    return Loop()._live\n" + CLASS, 0),
        # another object with an attribute of the same name as one of this file's
        (CLASS + "def used(other):\n    return other._live\n", 1),
        (CLASS + "    def both(self, other: Loop):\n        return self._live | other._live\n", 0),
        (CLASS + "loop = Loop()\nprint(loop._live, vars(loop), [_ for _ in loop])\n", 0),
        ("def changed(state):\n    return state._replace(live=None), state.__class__\n", 0),
        ("_HERE = 1\ndef read():\n    return _HERE\n", 0),
    ],
)
def test_what_is_found(text, count):
    assert len(list(foreign(text))) == count
