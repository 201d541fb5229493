"""Every import contract is effective: a small source tree that violates it fails, one that obeys it passes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
ROOMS = ("scope_jax", "rollouts", "models", "retrieval", "sharding")
KEPT = {
    "scope_jax/train.py": "import models.transformer, rollouts.engine, retrieval.search\n",
    "scope_jax/systems/__init__.py": "from scope_jax.systems import ssp, spice\n",
    "scope_jax/systems/ssp/__init__.py": "from scope_jax.systems.ssp import rules\n",
    "scope_jax/systems/ssp/rules.py": "import scope_jax.play.tools\n",
    "scope_jax/play/tools.py": "import scope_jax.learner.losses\n",
    "scope_jax/learner/losses.py": "import scope_jax.config\n",
    **{
        f"scope_jax/{room}.py": ""
        for room in ("cli", "examine", "evaluate", "analyses", "atlas", "selftest", "serving", "plan", "report", "run")
    },
    **{f"scope_jax/{room}.py": "" for room in ("data", "config", "text", "errors")},
    "scope_jax/systems/spice.py": "",
    "rollouts/engine.py": "import models.transformer, sharding.mesh, jax\n",
    "rollouts/jetstream.py": "from jetstream.engine import engine_api\nimport rollouts.engine\n",
    "retrieval/search.py": "import sharding.mesh, retrieval.scann\n",
    "retrieval/scann.py": "import scann\n",
    "models/transformer.py": "import sharding.mesh\n",
    "sharding/mesh.py": "import jax\n",
}
BROKEN = {
    "Layers": ("rollouts/engine.py", "import scope_jax.retrieval.search"),
    "retrieval does not know models": ("retrieval/search.py", "import scope_jax.models.transformer"),
    "sharding knows jax only": ("sharding/mesh.py", "import flax.struct"),
    "Rooms of scope_jax": ("scope_jax/learner/losses.py", "import scope_jax.play.tools"),
    "The games never import each other": ("scope_jax/systems/ssp/rules.py", "import scope_jax.systems.spice"),
    "No torch and no TensorFlow in any room": ("models/transformer.py", "import torch.nn"),
    "JetStream only in rollouts.jetstream": ("scope_jax/train.py", "import jetstream"),
    "ScaNN only in retrieval.scann": ("retrieval/search.py", "from scann import scann_ops_pybind"),
    "No import cycles": ("retrieval/scann.py", "import scope_jax.retrieval.search"),
}


def lint(folder: Path, changes: dict[str, str]) -> dict[str, str]:
    """Contract name → KEPT or BROKEN for a tree of our packages with `changes` added to its files."""
    for name, text in KEPT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + changes.get(name, "") + "\n")
    for room in (*ROOMS, "scope_jax/play", "scope_jax/learner"):
        (folder / room / "__init__.py").touch()
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)", done.stdout, re.MULTILINE))
    assert verdicts, done.stdout + done.stderr
    return verdicts


def contracts() -> list[str]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [contract["name"] for contract in table["tool"]["importlinter"]["contracts"]]


def test_a_tree_that_obeys_the_rules_passes(tmp_path: Path) -> None:
    assert lint(tmp_path, {}) == dict.fromkeys(contracts(), "KEPT")


def test_violating_every_rule_once_breaks_every_contract(tmp_path: Path) -> None:
    changes: dict[str, str] = {}
    for file, line in BROKEN.values():
        changes[file] = changes.get(file, "") + line + "\n"
    assert lint(tmp_path, changes) == dict.fromkeys(contracts(), "BROKEN")


def test_every_contract_has_its_counterexample() -> None:
    assert [name for name in contracts() if not name.startswith(tuple(BROKEN))] == []


def test_there_are_no_import_cycles() -> None:
    """Stricter than the contract: also between a package and a module inside it, and for type-only imports."""
    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    cycles = [
        (module, *back)
        for module in sorted(graph.modules)
        for imported in graph.find_modules_directly_imported_by(module)
        if (back := graph.find_shortest_chain(imported, module))
    ]
    assert len(graph.modules) > 100 and cycles == []


def test_dynamic_imports_are_in_the_guards_only() -> None:
    """import-linter does not see importlib.import_module and __import__; only the two guards may use them."""
    found = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
                if name in ("import_module", "__import__"):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found <= {"rollouts/jetstream.py", "retrieval/scann.py"}
