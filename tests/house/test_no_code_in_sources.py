"""No module of ours unpickles, evaluates or imports what it reads, or lets a library do so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("scope_jax", "rollouts", "models", "retrieval", "sharding", "launch", "benchmarks", "tools")
MODULES = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "runpy", "code")
CALLS = ("eval", "exec", "compile", "__import__", "read_pickle", "load_searcher", "load_module", "SourceFileLoader")
TRUSTED = {
    "scope_jax/games/__init__.py": ("spec_from_file_location", "exec_module"),  # the game that a card names
    "scope_jax/grading/function_worker.py": ("spec_from_file_location", "exec_module"),  # the reward that a card names
    "scope_jax/environments/isolation/cells.py": ("compile", "exec"),  # code of a policy, in a worker of the sandbox
    "scope_jax/environments/isolation/functions.py": ("compile", "exec"),  # the same
}
IMPORTS = ("import_module", "spec_from_file_location", "module_from_spec", "exec_module")
LOADERS = ("from_pretrained", "load_dataset", "load_dataset_builder")
OWN = ("benchmarks/peers/worker.py",)  # one of our own modules, by its name


def unsafe(source: str, trusted: tuple[str, ...] = ()) -> list[str]:
    """What in a module could run something that is read, or lets a library do so."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.split(".")[0] in MODULES]
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        plain = isinstance(called, ast.Name)
        name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        said = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
        owner = (
            node.func.value.id if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) else ""
        )
        named = name in CALLS and (plain or name not in ("eval", "exec", "compile"))
        if (named or name in IMPORTS) and name not in trusted:
            found.append(name)
        elif name in LOADERS and said.get("trust_remote_code", True) is not False:
            found.append(f"{name} without trust_remote_code=False")
        elif name == "load" and owner in ("np", "numpy", "jnp") and said.get("allow_pickle", True) is not False:
            found.append("np.load without allow_pickle=False")
        elif name == "load" and owner in ("torch", "yaml", "pickle"):
            found.append(f"{owner}.load")
        elif name in ("unsafe_load", "full_load", "load_all") and owner == "yaml":
            found.append(f"yaml.{name}")
        elif said.get("shell") is True or (owner == "os" and name in ("system", "popen")):
            found.append("a shell")
        elif said.get("allow_pickle") is True or said.get("trust_remote_code") is True:
            found.append("allowed")
    return found


def test_no_source_loads_code() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(paths) > 300
    found = {}
    for path in paths:
        place = path.relative_to(ROOT).as_posix()
        allowed = ("import_module",) if place in OWN else TRUSTED.get(place, ())
        allowed += ("module_from_spec",) if place in TRUSTED else ()
        if wrong := unsafe(path.read_text(encoding="utf-8"), allowed):
            found[place] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "import pickle as p", "from pickle import loads", "def f():\n    import cloudpickle"),
        *(
            "import joblib",
            "import shelve",
            "import marshal",
            "import dill",
            "eval('1')",
            "exec(x)",
            "compile(a, b, c)",
        ),
        *("AutoTokenizer.from_pretrained(folder)", "load_dataset(name)", "datasets.load_dataset(name, split=s)"),
        *("AutoModel.from_pretrained(f, trust_remote_code=True)", "AutoConfig.from_pretrained(f, trust_remote_code=x)"),
        *("np.load(f)", "np.load(f, allow_pickle=True)", "numpy.load(f)", "torch.load(f)", "yaml.load(f)"),
        *("yaml.unsafe_load(f)", "pd.read_pickle(f)", "ops.load_searcher(f)", "subprocess.run(c, shell=True)"),
        *("os.system(c)", "importlib.import_module(name)", "spec.loader.exec_module(m)", "__import__(name)"),
    ],
)
def test_what_the_sources_may_not_hold_is_noticed(source: str) -> None:
    assert unsafe(source)


@pytest.mark.parametrize(
    "source",
    ["np.load(f, allow_pickle=False)", "load_dataset(n, trust_remote_code=False)", "re.compile(x)", "model.eval()",
     "yaml.safe_load(f)", "json.load(f)"],
)  # fmt: skip
def test_what_they_may_hold_is_not(source: str) -> None:
    assert unsafe(source) == []
