"""Every import contract is effective: a small source tree that violates it fails, one that obeys it passes."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("models", "rollouts", "retrieval", "sharding")  # folders that are parts of scope_jax by a link
KEPT = {
    "train.py": "import scope_jax.models.decoder.transformer, scope_jax.rollouts.engine, scope_jax.retrieval.search\n",
    "games/__init__.py": "from scope_jax.games import ssp, spice\n",
    "games/ssp/__init__.py": "from scope_jax.games.ssp import rules\n",
    "games/ssp/rules.py": "import scope_jax.play.tools\n",
    "play/tools.py": "import scope_jax.learner.losses\n",
    "learner/losses.py": "import scope_jax.config\n",
    **{f"{part}.py": "" for part in ("cli", "selftest", "serving", "report", "plan", "evaluation", "run")},
    **{
        f"{part}.py": ""
        for part in ("data", "config", "text", "errors", "files", "grading", "environments", "multihost", "web")
    },
    "games/spice.py": "",
    "rollouts/engine.py": "import scope_jax.models.decoder.transformer, scope_jax.sharding.mesh, jax\n",
    "rollouts/jetstream.py": "from jetstream.engine import engine_api\nimport scope_jax.rollouts.engine\n",
    "retrieval/search.py": "import scope_jax.sharding.mesh, scope_jax.retrieval.scann\n",
    "retrieval/scann.py": "import scann\n",
    "models/decoder/transformer.py": "import scope_jax.sharding.mesh\n",
    "sharding/mesh.py": "import jax\n",
}
BROKEN = {
    "Layers": ("rollouts/engine.py", "import scope_jax.retrieval.search"),
    "retrieval does not know models": ("retrieval/search.py", "import scope_jax.models.decoder.transformer"),
    "sharding knows jax only": ("sharding/mesh.py", "import flax.struct"),
    "The games never import each other": ("games/ssp/rules.py", "import scope_jax.games.spice"),
    "No torch and no TensorFlow in any room": ("models/decoder/transformer.py", "import torch.nn"),
    "JetStream only in rollouts.jetstream": ("train.py", "import jetstream"),
    "ScaNN only in retrieval.scann": ("retrieval/search.py", "from scann import scann_ops_pybind"),
    "No import cycles": ("retrieval/scann.py", "import scope_jax.retrieval.search"),
}


def lint(folder: Path, changes: dict[str, str]) -> dict[str, str]:
    """Contract name → KEPT or BROKEN for a tree of our package with `changes` added to its files."""
    for name, text in KEPT.items():
        path = folder / "scope_jax" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + changes.get(name, "") + "\n")
    for part in (".", "play", "learner", *LINKED, "models/decoder"):
        (folder / "scope_jax" / part / "__init__.py").touch()
    (folder / "tools").mkdir(exist_ok=True)
    (folder / "tools" / "__init__.py").write_text("import scope_jax.learner.losses\n")
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


@pytest.mark.parametrize("file", ["cli.py", "run.py", "models/decoder/transformer.py"])
def test_no_part_of_the_product_imports_the_tools(tmp_path: Path, file: str) -> None:
    broken = [name for name, verdict in lint(tmp_path, {file: "import tools\n"}).items() if verdict == "BROKEN"]
    assert [name.partition(":")[0] for name in broken] == ["Layers"]


def test_every_contract_has_its_counterexample() -> None:
    assert [name for name in contracts() if not name.startswith(tuple(BROKEN))] == []


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of scope_jax in which folders take the place of links, which grimp does not follow."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "scope_jax", folder / "scope_jax", ignore=shutil.ignore_patterns("assets", "configs"))
    shutil.copytree(ROOT / "tools", folder / "tools")
    return folder


def test_there_are_no_import_cycles(package: Path) -> None:
    """Stricter than the contract: also between a package and a module inside it, and for type-only imports."""
    program = (
        "import grimp, json; graph = grimp.build_graph('scope_jax', 'tools', cache_dir=None);"
        "found = sorted(graph.modules);"
        "cycles = [[module, *back] for module in found for imported in graph.find_modules_directly_imported_by(module)"
        " if (back := graph.find_shortest_chain(imported, module))]; print(json.dumps([found, cycles]))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=package, env=os.environ | {"PYTHONPATH": str(package)}, capture_output=True)
    modules, cycles = json.loads(done.stdout)
    assert len(modules) > 100 and "scope_jax.models.decoder.transformer" in modules and cycles == [], done.stderr


def test_dynamic_imports_are_in_the_guards_only(package: Path) -> None:
    """import-linter does not see importlib.import_module and __import__; only the two guards may use them."""
    places = set()
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "import_module" in text or "__import__" in text else ():
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in ("import_module", "__import__"):
                places.add(path.relative_to(package).as_posix())
    assert places <= {"scope_jax/rollouts/jetstream.py", "scope_jax/retrieval/scann.py"}


def test_every_linked_folder_is_a_link_in_the_checkout() -> None:
    links = {path.name: str(path.readlink()) for path in (ROOT / "scope_jax").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in (*LINKED, "configs", "assets")}
