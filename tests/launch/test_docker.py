"""The Dockerfiles, as far as they can be checked without building them: structure, files, pins, commands.

Not checked: that the base image exists, that wheels can be downloaded, and that the images run.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "launch" / "docker").glob("*.Dockerfile"))
EXTRAS = {"cpu": None, "cuda": "jax[cuda12]", "tpu": "jax[tpu]"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, its arguments) in order, without comments."""
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def pinned() -> dict[str, Requirement]:
    """Every requirement of the two files that the constraints consist of."""
    found = {}
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text().splitlines():
            if text := line.partition("#")[0].strip():
                requirement = Requirement(text)
                assert str(requirement.specifier).startswith("=="), line
                found[canonicalize_name(requirement.name)] = requirement
    return found


def test_there_is_one_for_each_platform() -> None:
    assert [path.name.split(".")[0] for path in FILES] == sorted(EXTRAS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_structure(path: Path) -> None:
    steps = instructions(path)
    assert {word for word, _ in steps} <= {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "CMD"}
    assert steps[0][0] == "FROM" and re.fullmatch(r"python:3\.1[1-3]\.\d+-slim-\w+", steps[0][1])
    users = [(place, value) for place, (word, value) in enumerate(steps) if word == "USER"]
    assert len(users) == 1 and users[0][1] == "scope" and users[0][0] == len(steps) - 2  # after all installation
    assert any(word == "RUN" and value.startswith("useradd ") and value.endswith(" scope") for word, value in steps)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_that_are_copied_exist_and_reach_the_builder(path: Path) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = [source for word, value in instructions(path) if word == "COPY" for source in value.split()[:-1]]
    assert sorted(copied) == sorted(sent) and "*" in rules
    assert all((ROOT / source).exists() for source in copied)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(packages["packages"]) <= set(copied)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_everything_that_pip_installs_is_pinned(path: Path) -> None:
    commands = [shlex.split(value) for word, value in instructions(path) if word == "RUN"]
    pips = [words[2:] for words in commands if words[:2] == ["pip", "install"]]
    named = [word for words in pips for word in words if not word.startswith("-") and not (ROOT / word).exists()]
    extra = EXTRAS[path.name.split(".")[0]]
    assert named == ([] if extra is None else [extra])
    for words in pips:
        if extra in words:
            assert words[words.index("-c") + 1] == "constraints.txt"
        else:
            assert "--no-deps" in words
    assert any(words[-2:] == ["-r", "requirements.txt"] for words in pips)
    for name in named:  # the constraints pin jax itself, and JAX ties its plugins to its own version
        wanted, pins = Requirement(name), pinned()
        assert canonicalize_name(wanted.name) in pins
        (option,) = wanted.extras
        needs = [Requirement(text) for text in metadata.requires("jax") or ()]
        chosen = [need for need in needs if need.marker and need.marker.evaluate({"extra": option})]
        assert chosen
        for need in chosen:
            pin = pins.get(canonicalize_name(need.name))
            assert (
                need.name.startswith("jax-cuda12") if pin is None else need.specifier.contains(str(pin.specifier)[2:])
            )


def test_the_images_have_the_command_that_launches_run() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "scope-jax" in scripts
    for path in FILES:
        assert ("CMD", '["scope-jax", "--help"]') in instructions(path)


def test_the_documents_say_how_to_build_each() -> None:
    text = (ROOT / "docs" / "pods.md").read_text()
    assert all(f"launch/docker/{path.name}" in text for path in FILES)
