"""The Dockerfiles, as far as they can be checked without building them: structure, files, pins, commands.

Not checked: that the base image exists, that wheels can be downloaded, and that the images run.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import metadata
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "launch" / "docker").glob("*.Dockerfile"))
# What each installs besides requirements.txt, all of it with exact versions.
EXTRAS = {"cpu": None, "cuda": "requirements-cuda.txt", "tpu": "jax[tpu]"}
CUDA = ROOT / "launch" / "docker" / "requirements-cuda.txt"


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, its arguments) in order, without comments."""
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def pins(*paths: Path) -> dict[str, Requirement]:
    """The requirements of these files by name, each with an exact version."""
    found = {}
    for path in paths:
        for line in path.read_text().splitlines():
            if text := line.partition("#")[0].strip():
                requirement = Requirement(text)
                assert str(requirement.specifier).startswith("=="), line
                found[canonicalize_name(requirement.name)] = requirement
    return found


def needed(option: str) -> list[Requirement]:
    """What JAX requires for one of its extras."""
    needs = [Requirement(text) for text in metadata.requires("jax") or ()]
    return [need for need in needs if need.marker and need.marker.evaluate({"extra": option})]


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
    assert {source.split("/")[0] for source in copied} <= set(sent) and rules[0] == "*"
    assert all((ROOT / source).exists() for source in copied)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(packages["only-include"]) <= set(copied)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_everything_that_pip_installs_is_pinned(path: Path) -> None:
    commands = [shlex.split(value) for word, value in instructions(path) if word == "RUN"]
    pips = [words[2:] for words in commands if words[:2] == ["pip", "install"]]
    extra = EXTRAS[path.name.split(".")[0]]
    ours = ["--no-cache-dir", "--no-deps", "--no-build-isolation", "--editable", "."]
    expected = [["--no-cache-dir", "--no-deps", "-r", "requirements.txt"], ours]
    if extra is not None and extra.endswith(".txt"):
        expected.insert(1, ["--no-cache-dir", "--no-deps", "-r", extra])
    elif extra is not None:
        expected.insert(1, ["--no-cache-dir", "-c", "constraints.txt", extra])
    assert pips == expected


PINNED = version("jax") == str(pins(ROOT / "requirements.txt")["jax"].specifier)[2:]


@pytest.mark.skipif(not PINNED, reason="another JAX than that of requirements.txt is installed")
def test_the_constraints_hold_the_tpu_compiler() -> None:
    assert {"-c requirements.txt", "-c requirements-dev.txt"} <= set(
        (ROOT / "constraints.txt").read_text().splitlines()
    )
    known = pins(ROOT / "requirements.txt", ROOT / "requirements-dev.txt")
    needs = needed("tpu")
    assert any(need.name == "libtpu" for need in needs)
    for need in needs:
        assert need.specifier.contains(str(known[canonicalize_name(need.name)].specifier)[2:])


@pytest.mark.skipif(not PINNED, reason="another JAX than that of requirements.txt is installed")
def test_the_cuda_plugin_has_the_version_of_jax() -> None:
    cuda, jax = pins(CUDA), pins(ROOT / "requirements.txt")["jax"]
    (plugin,) = [need for need in needed("cuda12") if need.name != "jaxlib"]
    assert cuda[plugin.name].specifier == cuda["jax-cuda12-pjrt"].specifier == jax.specifier
    libraries = ("cublas", "cudnn", "cufft", "cusolver", "cusparse", "nccl", "cuda-nvcc", "nvjitlink")
    assert all(f"nvidia-{library}-cu12" in cuda for library in libraries)


def test_the_images_have_the_command_that_launches_run() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "scope-jax" in scripts
    for path in FILES:
        assert ("CMD", '["scope-jax", "--help"]') in instructions(path)


def test_the_documents_say_how_to_build_each() -> None:
    text = (ROOT / "docs" / "launch.md").read_text()
    assert all(f"launch/docker/{path.name}" in text for path in FILES)


def test_the_cuda_image_has_what_nccl_needs_for_rdma() -> None:
    """From the distribution that the image begins with, before the user changes."""
    steps = instructions(ROOT / "launch" / "docker" / "cuda.Dockerfile")
    (place,) = [number for number, (word, value) in enumerate(steps) if word == "RUN" and "apt-get install" in value]
    assert {"libibverbs1", "ibverbs-providers", "librdmacm1", "rdma-core"} <= set(shlex.split(steps[place][1]))
    assert steps[place][1].endswith("rm -rf /var/lib/apt/lists/*") and place < steps.index(("USER", "scope"))


def runs_of(text: str) -> list[list[str]]:
    """The commands docker run in a text, with lines that a backslash continues."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if "docker run --" in line]
    found = [line[line.index("docker run") :].split("`")[0] for line in lines]
    return [shlex.split(command) for command in found]


PAGES = [*(ROOT / "docs").glob("*.md"), *FILES, ROOT / "README.md"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_containers_with_gpus_have_the_hosts_network_and_memory(path: Path) -> None:
    """Otherwise NCCL takes TCP between nodes, and its shared memory is 64 MiB."""
    for words in runs_of(path.read_text(encoding="utf-8")):
        if "--gpus" in words:
            options = set(pairwise(words))
            assert {("--network", "host"), ("--ipc", "host"), ("--ulimit", "memlock=-1")} <= options, words


def test_a_container_without_them_is_noticed() -> None:
    (words,) = runs_of("In one: `docker run --gpus all --volume a:b image`, or so.")
    assert words == ["docker", "run", "--gpus", "all", "--volume", "a:b", "image"]
    assert runs_of((ROOT / "docs" / "launch.md").read_text(encoding="utf-8"))
