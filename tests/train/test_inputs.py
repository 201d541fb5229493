"""A run that goes on names every file that it read and that is not as it was."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax import cli
from scope_jax.config import Config
from scope_jax.config.base import prompts_of
from scope_jax.games import parse_config
from scope_jax.run import inputs
from scope_jax.run.config_file import to_toml
from scope_jax.run.files import RunError
from scope_jax.run.inputs import NAME, Inputs
from scope_jax.run.lines import DamagedFile

FILES = {
    "answers.jsonl": '{"answer": "Paris"}\n',
    "exam.jsonl": '{"question": "Where?", "answers": ["Paris"]}\n',
    "corpus.jsonl": '{"id": "1", "title": "Paris", "text": "A city."}\n',
    "base/config.json": '{"model_type": "qwen3"}',
    "base/tokenizer.json": "{}",
    "base/model.safetensors": "weights",
    "words/tokenizer_config.json": "{}",
    "template.jinja": "{{ messages }}",
    "index/corpus/data-00000-of-00001.arrow": "passages",
    "index/embedder.npz": "encoder",
}


ARENA = """
from scope_jax.config import SamplingSection, Section
from scope_jax.games import ssp
from scope_jax.play.game import Game
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent

class Options(Section):
    tasks: dict[str, str]

def roles(cfg):
    return (Role("solver", Agent("actor", SamplingSection(), tools=("search",))),)

GAME = Game("arena", Options, roles, ssp.GAME.play, data=("answers",))
"""


class World:
    """A card with files of its own, and the folder of a run that has begun."""

    def __init__(self, place: Path, **more: object) -> None:
        self.place, self.run, self.said = place, place / "run", list[str]()
        for name, text in FILES.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        shutil.copytree(prompts_of("ssp"), place / "prompts")
        table = {
            "system": "ssp",
            "model": {
                "checkpoint": str(place / "base"),
                "tokenizer": str(place / "words"),
                "chat_template": str(place / "template.jinja"),
            },
            "retrieval": {"corpus": str(place / "corpus.jsonl"), "index": str(place / "index")},
            "data": {"answers": str(place / "answers.jsonl")},
            "evaluate": {"sets": [{"name": "held_out", "path": str(place / "exam.jsonl")}]},
            "train": {"steps": 3},
            "ssp": {"grader": "exact-match", "prompts": str(place / "prompts")},
        }
        if "system" in more:
            del table["ssp"]
        self.cfg = parse_config(table | more, "test card")
        self.check(self.cfg)
        (self.run / "config.toml").write_text(to_toml(self.cfg))
        (self.run / "metrics.jsonl").write_text('{"step": 1}\n')

    def check(self, cfg: Config | None = None, accept: bool = False) -> dict[str, dict[str, object]]:
        Inputs(self.run, self.cfg, cfg or self.cfg).check(accept, self.said.append)
        return json.loads((self.run / NAME).read_text())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_file_of_the_card_is_recorded(world: World) -> None:
    found = world.check()
    names = {"data.answers", "evaluate.sets[0].path", "retrieval.corpus", "model.chat_template"}
    names |= {"model.checkpoint/config.json", "model.checkpoint/tokenizer.json", "ssp.prompts/solver.txt"}
    names |= {"model.tokenizer/tokenizer_config.json", "retrieval.index/embedder.npz"}
    names |= {"retrieval.index/corpus/data-00000-of-00001.arrow"}
    assert names <= set(found) and not any("safetensors" in name for name in found)
    sha256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # of {}, by sha256sum
    entry = found["model.checkpoint/tokenizer.json"]
    assert entry["path"] == str(world.place / "base" / "tokenizer.json")
    assert (entry["bytes"], entry["sha256"]) == (2, sha256)


def longer(file: Path) -> None:
    file.write_text(file.read_text() + "\n")


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "data": ("data.answers", lambda place: (place / "answers.jsonl").write_text('{"answer": "Parma"}\n')),
    "exam": ("evaluate.sets[0].path", lambda place: (place / "exam.jsonl").write_text("{}\n")),
    "corpus": ("retrieval.corpus", lambda place: longer(place / "corpus.jsonl")),
    "prompt": ("ssp.prompts/solver.txt", lambda place: longer(place / "prompts" / "solver.txt")),
    "no prompt": ("ssp.prompts/solver.txt", lambda place: (place / "prompts" / "solver.txt").unlink()),
    "new prompt": ("ssp.prompts/nudge.txt", lambda place: (place / "prompts" / "nudge.txt").write_text("Go on.")),
    "config": ("model.checkpoint/config.json", lambda place: (place / "base" / "config.json").write_text("{}")),
    "end": (
        "model.checkpoint/generation_config.json",
        lambda place: (place / "base" / "generation_config.json").write_text('{"eos_token_id": 3}'),
    ),
    "tokenizer": (
        "model.tokenizer/tokenizer_config.json",
        lambda place: (place / "words" / "tokenizer_config.json").write_text("[]"),
    ),
    "template": ("model.chat_template", lambda place: (place / "template.jinja").write_text("{{ message }}\n")),
    "passages": (
        "retrieval.index/corpus/data-00000-of-00001.arrow",
        lambda place: (place / "index" / "corpus" / "data-00000-of-00001.arrow").write_text("passagen"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_named_and_may_be_accepted(change: str, world: World) -> None:
    name, make = CHANGES[change]
    before = world.check()
    make(world.place)
    with pytest.raises(RunError, match=r"the run in .* was started with other contents of") as caught:
        world.check()
    assert (
        name in str(caught.value) and str(world.place) in str(caught.value) and "--accept-inputs" in str(caught.value)
    )
    assert json.loads((world.run / NAME).read_text()) == before
    after = world.check(accept=True)
    assert world.said == [said for said in world.said if name in said] != []
    if name in before and name in after:
        assert after[name]["earlier"] == [before[name]["sha256"]] != [after[name]["sha256"]]
    assert world.check() == after  # asked once


def test_a_record_that_is_gone_is_said(world: World) -> None:
    before, said = world.check(), list(world.said)
    (world.run / NAME).unlink()
    assert world.check() == before
    assert said == [] and [NAME in sentence for sentence in world.said] == [True]


def test_files_of_editors_and_systems_do_not_matter(world: World) -> None:
    before = world.check()
    for name in ("prompts/.solver.txt.swp", "prompts/solver.txt~", "base/.cache/x.json", "base/.DS_Store"):
        (world.place / name).parent.mkdir(exist_ok=True)
        (world.place / name).touch()
    (world.place / "base" / "model.safetensors").write_text("other weights")
    assert world.check() == before


def test_neither_size_nor_time_hides_a_change(world: World) -> None:
    file = world.place / "answers.jsonl"
    past = file.stat()
    file.write_text(FILES["answers.jsonl"].replace("Paris", "Parma"))
    os.utime(file, ns=(past.st_atime_ns, past.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (past.st_size, past.st_mtime_ns)
    with pytest.raises(RunError, match=r"data\.answers"):
        world.check()


def test_a_file_is_read_again_only_if_it_may_have_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SETTLED", -(10**18))  # as if all were written long ago
    for path in world.place.rglob("*"):
        os.utime(path)
    world.check()
    read: list[str] = []
    digest = inputs._sha256
    monkeypatch.setattr(inputs, "_sha256", lambda path: read.append(path.name) or digest(path))
    world.check()
    assert read == []
    os.utime(world.place / "corpus.jsonl")
    world.check()
    assert read == ["corpus.jsonl"]


def test_copies_elsewhere_are_the_same_inputs(world: World, tmp_path: Path) -> None:
    """Another machine has its own copies of what lies on object storage, with other times."""
    for name in ("answers.jsonl", "base"):
        copy = shutil.copytree if (world.place / name).is_dir() else shutil.copyfile
        copy(world.place / name, tmp_path / f"copy-{name}")
    data = world.cfg.data.model_copy(update={"answers": str(tmp_path / "copy-answers.jsonl")})
    model = world.cfg.model.model_copy(update={"checkpoint": str(tmp_path / "copy-base")})
    here = world.cfg.model_copy(update={"data": data, "model": model})
    found = world.check(here)
    assert found["data.answers"]["path"] == str(world.place / "answers.jsonl")
    (tmp_path / "copy-base" / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"model\.checkpoint/config\.json"):
        world.check(here)


def test_a_run_that_has_not_begun_takes_the_files_as_they_are(world: World) -> None:
    (world.run / "metrics.jsonl").unlink()
    (world.place / "answers.jsonl").write_text("{}\n")
    assert world.check()["data.answers"]["bytes"] == 3


def test_an_index_that_is_deleted_is_built_again(world: World) -> None:
    before = world.check()
    shutil.rmtree(world.place / "index")
    assert world.check() == before  # still known when it is there again
    for name in ("corpus/data-00000-of-00001.arrow", "embedder.npz"):
        (world.place / "index" / name).parent.mkdir(parents=True, exist_ok=True)
        (world.place / "index" / name).write_text(FILES[f"index/{name}"])
    assert world.check().keys() == before.keys()


def test_python_files_of_a_game_are_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arena.py").write_text(ARENA)
    (tmp_path / "arena_helper.py").write_text("one = 1\n")
    (tmp_path / "tasks.txt").write_text("1 + 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"system": str(tmp_path / "arena.py"), "arena": {"tasks": {"file": str(tmp_path / "tasks.txt")}}}
    world = World(tmp_path, **own)
    __import__("arena_helper")
    assert {"system", "system/arena_helper.py", "arena.tasks.file"} <= world.check().keys()
    monkeypatch.delitem(sys.modules, "arena_helper")
    world.check()  # imported later in this process
    __import__("arena_helper")
    for file, name in (
        ("arena_helper.py", "system/arena_helper.py"),
        ("arena.py", "system"),
        ("tasks.txt", "arena.tasks"),
    ):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text("two = 2\n")
        with pytest.raises(RunError, match=f"other contents of {name}"):
            world.check()
        (tmp_path / file).write_text(text)
    monkeypatch.delitem(sys.modules, "arena_helper")
    world.check()


def test_what_a_reward_function_imports_from_its_folder_is_an_input(tmp_path: Path) -> None:
    """By its text, as it runs in a process of its own; modules elsewhere and other files are none."""
    files = {
        "reward.py": "import json\nfrom parts.words import score\n\ndef reward(**row):\n    import late\n",
        "parts/__init__.py": "",
        "parts/words.py": "from . import numbers\nfrom .deep.text import clean\n",
        "parts/numbers.py": "one = 1\n",
        "parts/deep/text.py": "import parts.words\n",
        "late.py": "def broken(:\n",
        "unused.py": "two = 2\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    function = {"grader": "function", "function": str(tmp_path / "reward.py")}
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "answer": "!"}\n')
    world = World(
        tmp_path, system="rlvr", rlvr=function, data={"problems": str(tmp_path / "rows.jsonl")}, retrieval=None
    )
    own = {name for name in world.check() if name.startswith("rlvr.function")}
    imported = set(files) - {"reward.py", "unused.py"}
    assert own == {"rlvr.function", *(f"rlvr.function/{name}" for name in imported)}
    (tmp_path / "parts" / "numbers.py").write_text("one = 2\n")
    with pytest.raises(RunError, match=r"other contents of rlvr\.function/parts/numbers\.py \(.*parts/numbers\.py\)"):
        world.check()


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"path": "x"}}', "[" * 9000, "\xff"])
def test_a_damaged_record_is_one_sentence(text: str, world: World) -> None:
    (world.run / NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedFile, match=r"inputs\.json is damaged; remove it"):
        world.check()


def test_train_refuses_before_it_loads_anything(world: World) -> None:
    (world.place / "answers.jsonl").write_text('{"answer": "Rome"}\n')
    card = shutil.copyfile(world.run / "config.toml", world.place / "card.toml")
    found = CliRunner().invoke(cli.app, ["train", str(card), "--run", str(world.run)])
    assert found.exit_code == 2, found.output
    assert f"other contents of data.answers ({world.place / 'answers.jsonl'})" in " ".join(found.stderr.split())
    accepted = CliRunner().invoke(cli.app, ["train", str(card), "--run", str(world.run), "--accept-inputs"])
    assert "data.answers" not in accepted.stderr.splitlines()[-1]  # it ends later: there is no real model
