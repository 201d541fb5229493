"""Shared by all tests: type checks on public functions, one compilation cache, limited threads.

Runs before any package is imported, once in each pytest-xdist worker.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jaxtyping
import pytest
from jaxtyping import _decorator

from tests.environment import ROOT, set_defaults

# Modules are compiled once, not in every process that a test starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shapes and types of every annotated function are checked when it is called (under jit: when it is traced). An int may
# stand where a float is asked for, as for every static type checker.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
_jaxtyped = jaxtyping.jaxtyped


def _has_shape(hint: Any) -> bool:
    array = inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)
    return array or any(map(_has_shape, get_args(hint)))


def _with_checks(function: Any, typechecker: Any) -> Any:
    """jaxtyping's decorator; where no annotation has a shape, the type checker alone, which is much faster."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, AttributeError):  # a name of static type checkers alone, which jaxtyping takes for Any
        return _jaxtyped(function, typechecker=typechecker)
    if any(map(_has_shape, hints.values())):
        return _jaxtyped(function, typechecker=typechecker)
    function.__annotations__ = hints
    return typechecker(function)


def _checked(function: Any = None, *, typechecker: Any) -> Any:
    """A function is decorated when it is first called: most are not, in the process of a test."""
    if function is None:
        return partial(_checked, typechecker=typechecker)
    if not inspect.isfunction(function):
        return _jaxtyped(function, typechecker=typechecker)
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return _with_checks(function, typechecker)
    with_checks = cache(lambda: _with_checks(function, typechecker))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return with_checks()(*args, **kwargs)

    return call


jaxtyping.jaxtyped = _decorator.jaxtyped = _checked
jaxtyping.install_import_hook(["scope_jax", "tools"], CHECKER)

set_defaults()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="only the K-th of N parts of the selected tests, whole groups each")


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of a file are a group, as one worker runs them (`--dist loadfile`; with pytest 9.2 xdist 3.8 does not
    see groups); the cases of a test that takes many minutes name groups of their own for `--part`."""
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(ROOT))))


def group_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    assert mark is not None
    return str(mark.args[0])


# Folders whose files take long, first: otherwise one worker is idle while another ends the last file (the Makefile's
# --no-loadscope-reorder keeps this order).
LONG = ("train", "learner", "rollouts", "equivalence", "models", "evaluation", "mutants", "selftest", "sharding", "cli")


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(ROOT / "tests").parts[0]
    return LONG.index(folder) if folder in LONG else len(LONG)


@pytest.hookimpl(trylast=True)  # after `-m` has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    if not (part := config.getoption("--part")):
        return
    number, count = map(int, part.split("/")) if re.fullmatch(r"\d{1,3}/\d{1,3}", part) else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--part {part}: give K/N with 1 <= K <= N")
    chosen = set(sorted(set(map(group_of, items)))[number - 1 :: count])
    config.hook.pytest_deselected(items=[item for item in items if group_of(item) not in chosen])
    items[:] = [item for item in items if group_of(item) in chosen]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real corpora, tokenizers and weights; tests that want it are skipped where it is absent."""
    folder = Path(os.environ.get("SCOPE_JAX_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("no shared data: set SCOPE_JAX_DATA to its folder")
    return folder
