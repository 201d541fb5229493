"""Runs and data on gs:// and s3://, against a fake object store."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax import cli
from scope_jax.games import load_card, parse_config
from scope_jax.learner.state import TrainState
from scope_jax.models.files.seal import SEAL, fault
from scope_jax.run.checkpoint import steps
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.fetching import Store, fetch, fetched
from scope_jax.run.files import RunError
from scope_jax.run.folder import RunFolder
from scope_jax.run.mirror import Mirror, run_folder
from tests.train import runs
from tests.train.buckets import Buckets

SCHEMES = ("gs", "s3")


@pytest.fixture(scope="module")
def server() -> Iterator[Buckets]:
    """One for all tests: tensorstore reads its address only once."""
    with Buckets() as server:
        yield server
        server.shutdown()


@pytest.fixture
def buckets(server: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Buckets:
    server.objects.clear()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))  # no credentials of the user
    return server


def card(**train: Any) -> Any:
    table = {
        "system": "ssp",
        "model": {"checkpoint": "base"},
        "retrieval": {"corpus": "corpus.jsonl"},
        "data": {"answers": "answers.jsonl"},
        "train": {"steps": 9} | train,
        "ssp": {"grader": "exact-match"},
    }
    return parse_config(table, "test card")


def quiet(sentence: str) -> None:
    pass


# ------------------------------------------------------------------------------------------------------------- objects
@pytest.mark.parametrize("scheme", SCHEMES)
def test_objects_are_written_listed_read_and_deleted(scheme: str, buckets: Buckets) -> None:
    store = Store(f"{scheme}://bucket/some/run")
    Store(f"{scheme}://bucket/some/running").write("other", b"!")
    for name, content in (("a/b.txt", b"hello"), ("a/empty", b""), ("z", bytes(range(256)) * 300)):
        store.write(name, content)
    assert store.names() == ["a/b.txt", "a/empty", "z"] and store.names("a/") == ["a/b.txt", "a/empty"]
    assert store.read("a/b.txt") == b"hello" and store.read("a/empty") == b"" and store.read("nothing") is None
    assert store.read("z") == bytes(range(256)) * 300
    store.delete(["z", "nothing"])
    assert buckets.names("bucket") == ["some/run/a/b.txt", "some/run/a/empty", "some/running/other"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_copy_follows_what_changes_and_reads_nothing_twice(scheme: str, buckets: Buckets, tmp_path: Path) -> None:
    store, url = Store(f"{scheme}://bucket/data"), f"{scheme}://bucket/data"
    store.write("one.jsonl", b"1")
    store.write("model/config.json", b"{}")
    place = fetch(url, tmp_path)
    assert (place / "one.jsonl").read_bytes() == b"1" and (place / "model" / "config.json").read_bytes() == b"{}"
    (place / "one.jsonl").write_bytes(b"untouched")
    store.write("model/config.json", b"[]")
    store.write("two.jsonl", b"2")
    store.delete(["model/none"])
    assert fetch(url, tmp_path) == place
    assert (place / "one.jsonl").read_bytes() == b"untouched" and (place / "two.jsonl").read_bytes() == b"2"
    assert (place / "model" / "config.json").read_bytes() == b"[]"
    store.delete(["two.jsonl"])
    fetch(url, tmp_path)
    assert not (place / "two.jsonl").exists()
    assert fetch(url + "/one.jsonl", tmp_path / "other").read_bytes() == b"1"  # a single object
    with pytest.raises(FileNotFoundError, match=f"{url}/three.jsonl does not exist"):
        fetch(url + "/three.jsonl", tmp_path)


def test_processes_that_share_the_folder_fetch_at_the_same_time(
    buckets: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finishes while the other is about to give a file its name; in containers, both may have one process id."""
    store = Store("gs://bucket/model")
    store.write("config.json", b"{}")
    store.write("model.safetensors", b"weights")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    writing, finished, replace = threading.Event(), threading.Event(), os.replace

    def late(source: Path, target: Path) -> None:
        if Path(target).name == "model.safetensors" and not writing.is_set():  # the first one waits for the second
            writing.set()
            assert finished.wait(30)
        replace(source, target)

    monkeypatch.setattr(os, "replace", late)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(fetch, "gs://bucket/model", tmp_path)
        assert writing.wait(30)
        place = fetch("gs://bucket/model", tmp_path)
        finished.set()
        assert first.result() == place
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_storage_without_access_is_one_sentence(scheme: str, buckets: Buckets) -> None:
    with pytest.raises(ConnectionError, match=f"{scheme}://forbidden/run cannot be used"):
        Store(f"{scheme}://forbidden/run").names()


def test_a_card_reads_from_object_storage_and_writes_to_local_folders(buckets: Buckets, tmp_path: Path) -> None:
    Store("gs://bucket/corpora").write("wiki.jsonl", b"{}\n")
    Store("s3://bucket").write("base/config.json", b"{}")
    remote = ["retrieval.corpus=gs://bucket/corpora/wiki.jsonl", "model.checkpoint=s3://bucket/base"]
    place = runs.ROOT / "configs" / "ssp" / "atlas.toml"
    cfg = load_card(place, [*remote, f"train.spool={tmp_path}"])
    local = fetched(cfg, quiet)
    assert local.retrieval is not None and local.retrieval.corpus is not None
    assert Path(local.retrieval.corpus).read_bytes() == b"{}\n"
    assert (Path(local.model.checkpoint) / "config.json").read_bytes() == b"{}"
    assert local.data == cfg.data and fetched(local, quiet) is local
    for key in ("retrieval.index", "train.origin", "train.compilation_cache", "train.spool"):
        with pytest.raises(ValueError, match=f"{key}.* is on object storage, but this must be a local path"):
            load_card(place, [f"{key}=gs://bucket/folder"])


OUTSIDE = ("../../../escape", "absolute", "a/../../../x", "..\\x", "deep/./x")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", OUTSIDE)
def test_no_object_is_written_outside_its_folder(scheme: str, name: str, buckets: Buckets, tmp_path: Path) -> None:
    """Whoever may write to a bucket chooses the names of its objects, which HTTP does not change."""
    spool = tmp_path / "one" / "two" / "three" / "four"
    name = str(tmp_path / name) if name == "absolute" else name
    for place in ("data", "run"):
        for each, content in (("config.toml", b""), (name, b"written by a stranger")):
            buckets.objects["bucket", f"{place}/{each}"] = (content, 1)
    with pytest.raises(ValueError, match=f"^{scheme}://bucket/data names .* not a file in the same folder"):
        fetch(f"{scheme}://bucket/data", spool)
    with pytest.raises(ValueError, match=f"^{scheme}://bucket/run names .* not a file in the same folder"):
        Mirror(f"{scheme}://bucket/run", spool).pull(quiet)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"run.lock"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_object_is_no_file_and_folder_at_once(scheme: str, buckets: Buckets, tmp_path: Path) -> None:
    store, url = Store(f"{scheme}://bucket/data"), f"{scheme}://bucket/data"
    for name in ("a", "a/b", "empty/"):
        store.write(name, b"")
    with pytest.raises(ValueError, match=f"{url} has both 'a' and 'a/b'"):
        fetch(url, tmp_path)
    store.delete(["a"])
    place = fetch(url, tmp_path)
    assert (place / "a" / "b").is_file() and not (place / "empty").exists()  # what a console shows as a folder
    store.delete(["a/b"])
    store.write("a", b"now a file")
    assert (fetch(url, tmp_path) / "a").read_bytes() == b"now a file"
    store.delete(["a"])
    store.write("a/b", b"a folder again")
    assert (fetch(url, tmp_path) / "a" / "b").read_bytes() == b"a folder again"


def test_a_damaged_record_of_a_copy_costs_a_download(buckets: Buckets, tmp_path: Path) -> None:
    store = Store("gs://bucket/data")
    for name in ("one.jsonl", "one.jsonl.versions.json"):  # the second was once where the first one's record is
        store.write(name, name.encode())
    for text in ("{", "[]", '{"one.jsonl": 3}', '{"one.jsonl": "xyz"}', "[" * 9000):
        for name in ("one.jsonl", "one.jsonl.versions.json"):
            assert fetch(f"gs://bucket/data/{name}", tmp_path).read_bytes() == name.encode()
        for record in (tmp_path / "versions").iterdir():
            record.write_text(text)


@pytest.mark.parametrize(
    "name",
    ["٣", "5-iteration-1-more", *(pytest.param(name, marks=pytest.mark.slow) for name in ("foo", "5-x", "9" * 20))],
)
def test_a_folder_that_is_no_checkpoint_is_left_alone(name: str, buckets: Buckets, tmp_path: Path) -> None:
    one = Session("gs://bucket/run", tmp_path / "one")
    one.step(1)
    one.close()
    store, odd = Store("gs://bucket/run"), f"checkpoints/{name}/seal.json"
    store.write(odd, b"{}")
    two = Session("gs://bucket/run", tmp_path / "two")
    assert any(f"has {name!r}, which is not a checkpoint" in sentence for sentence in two.said)
    assert two.resumed() == 1
    for step in (2, 3, 4):
        two.step(step)
    two.close()
    assert odd in store.names() and not (two.folder / odd).exists()


# ---------------------------------------------------------------------------------------------------------- run folders
class Session:
    """One process of a run on object storage, with a local folder of its own, and without a game."""

    def __init__(self, url: str, spool: Path, keep: int = 2) -> None:
        self.said: list[str] = []
        cfg = card(keep=keep)
        self.mirror = Mirror(url, spool)
        self.mirror.pull(self.said.append)
        self.folder = self.mirror.folder
        self.log = RunFolder(self.folder, cfg)
        self.mirror.claim()
        self.checkpoints = Checkpoints(self.folder / "checkpoints", cfg, self.mirror)

    def step(self, number: int) -> None:
        self.log.metrics(number, {"loss": 1 / number})
        state = {"actor": {"params": {"w": jnp.full((4, 3), number, jnp.float32)}}}
        self.checkpoints.save(number, state, {"game": {"at": number}, "baselines": {}})
        self.checkpoints.wait()

    def resumed(self) -> int | None:
        target = {"actor": {"params": {"w": jnp.zeros((4, 3))}}}
        saved = self.checkpoints.resume(target, self.said.append)
        if saved is None:
            return None
        assert np.all(np.asarray(saved.states["actor"]["params"]["w"]) == saved.step)
        self.log.rewind(saved.step)
        return saved.step

    def close(self) -> None:
        self.mirror.push_files()
        self.die()

    def die(self) -> None:
        """As if killed: nothing is uploaded any more."""
        self.log.close()
        os.close(self.mirror._handle)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_run_goes_on_from_the_bucket_on_another_machine(scheme: str, buckets: Buckets, tmp_path: Path) -> None:
    url = f"{scheme}://bucket/runs/first"
    one = Session(url, tmp_path / "one", keep=1)
    assert one.resumed() is None
    one.step(1)
    one.step(2)
    one.log.metrics(3, {"loss": 0.0})  # after the last checkpoint: lost with the machine
    one.die()
    assert {name.split("/")[3] for name in buckets.names("bucket") if "/checkpoints/" in name} == {"2"}
    two = Session(url, tmp_path / "two", keep=1)
    assert two.resumed() == 2 and steps(two.folder / "checkpoints") == [2]
    two.step(3)
    two.close()
    lines = Store(url).read("metrics.jsonl")
    assert lines is not None
    assert [json.loads(line)["step"] for line in lines.splitlines()] == [1, 2, 3]
    with pytest.raises(RunError, match="another process has taken over"):
        one.step(4)


def test_the_reference_is_uploaded_once_and_downloaded_with_a_checkpoint(buckets: Buckets, tmp_path: Path) -> None:
    url, frozen = "gs://bucket/run", {"w": jnp.full((3, 3), 7.0)}

    def save(session: Session, step: int, reference: Any) -> None:
        state = TrainState(jnp.int32(step), jnp.int32(0), {"w": jnp.full((4, 3), step, jnp.float32)}, (), reference)
        session.log.metrics(step, {"loss": 1.0})
        session.checkpoints.save(step, {"actor": state}, {"game": {}, "baselines": {}})
        session.checkpoints.wait()

    def folders() -> set[str]:
        return {name.split("/")[1] for name in Store(url).names("checkpoints/")}

    one = Session(url, tmp_path / "one")
    for step in (1, 2, 3):
        save(one, step, frozen)
    sent = [name for method, name in buckets.requests if "/reference-1/" in name and method != "GET"]
    sent = [name for name in sent if not name.endswith(SEAL)]  # which is deleted before
    assert len(sent) == len(set(sent)) > 1 and folders() == {"2", "3", "reference-1"}
    one.die()
    target = TrainState(jnp.int32(0), jnp.int32(0), {"w": jnp.zeros((4, 3))}, (), {"w": jnp.zeros((3, 3))})
    for spool in ("two", "two", "one"):
        two = Session(url, tmp_path / spool)
        saved = two.checkpoints.resume({"actor": target}, pytest.fail)
        assert saved is not None and np.all(np.asarray(saved.states["actor"].ref_params["w"]) == 7)
        two.die()
    again = Session(url, tmp_path / "two")
    other = {"w": jnp.full((3, 3), 8.0)}
    for step in (4, 5):
        save(again, step, other)
    assert folders() == {"4", "5", "reference-4"}
    again.die()
    seal = f"checkpoints/reference-4/{SEAL}"
    Store(url).write(seal, (Store(url).read(seal) or b"").replace(b"[", b"[1", 1))
    with pytest.raises(RunError, match="every checkpoint in"):
        Session(url, tmp_path / "three")


def test_what_was_not_uploaded_completely_does_not_count(buckets: Buckets, tmp_path: Path) -> None:
    url = "gs://bucket/run"
    one = Session(url, tmp_path / "one")
    one.step(1)
    one.step(2)
    one.step(3)
    one.die()
    store = Store(url)
    assert {name.split("/")[1] for name in store.names("checkpoints/")} == {"2", "3"}
    buckets.requests.clear()
    again = Session(url, tmp_path / "one")  # on the same machine, which has the newest one
    assert again.resumed() == 3
    read = [name for method, name in buckets.requests if method == "GET" and "checkpoints/" in name]
    assert read == [f"run/checkpoints/3/{SEAL}"]
    again.die()
    store.write("checkpoints/3/memory/metadata", b"damaged")
    inside = [name for name in store.names("checkpoints/2/") if not name.endswith(SEAL)]
    store.upload([(one.folder / "checkpoints" / "3" / "meta" / "metadata", inside[0].replace("/2/", "/4/"))])  # killed
    two = Session(url, tmp_path / "two")
    assert two.resumed() == 2 and fault(two.folder / "checkpoints" / "2") is None
    assert any("skipping the checkpoint gs://bucket/run/checkpoints/3" in sentence for sentence in two.said)
    two.step(3)
    assert {name.split("/")[1] for name in store.names("checkpoints/")} == {"2", "3"}
    two.close()


def test_files_are_uploaded_at_the_end_and_only_if_they_changed(buckets: Buckets, tmp_path: Path) -> None:
    with run_folder("s3://bucket/run", tmp_path, quiet) as (folder, mirror):
        assert mirror is not None and folder == mirror.folder
        mirror.claim()
        for name in ("config.toml", "report/index.html", "index/vectors", "half.partial", ".lock"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        mirror.push_files()
        (folder / "report" / "index.html").write_text("a longer page")
        buckets.requests.clear()
    assert [name for method, name in buckets.requests if method == "PUT"] == ["run/report/index.html"]
    assert buckets.names("bucket") == ["run/config.toml", "run/owner", "run/report/index.html"]
    with run_folder(str(tmp_path / "here"), tmp_path, quiet) as found:
        assert found == (tmp_path / "here", None)


def test_a_run_killed_before_its_first_upload_begins_again(buckets: Buckets, tmp_path: Path) -> None:
    url = "gs://bucket/run"
    one = Session(url, tmp_path)
    one.log.metrics(1, {"loss": 1.0})
    (one.folder / "index").mkdir()
    one.die()
    assert buckets.names("bucket") == ["run/owner"]
    two = Session(url, tmp_path)
    assert two.resumed() is None
    two.step(1)
    two.die()
    three = Session(url, tmp_path / "elsewhere")
    assert three.resumed() == 1
    three.close()


def test_an_upload_begins_with_the_config(buckets: Buckets, tmp_path: Path) -> None:
    """Killed after any object of the first upload, the bucket is a run."""
    with run_folder("gs://bucket/run", tmp_path, quiet) as (folder, mirror):
        assert mirror is not None
        mirror.claim()
        for name in ("aaa", "config.toml", "metrics.jsonl", "zzz"):
            (folder / name).write_text(name)
        buckets.requests.clear()
        mirror.push_files()
        assert next(name for method, name in buckets.requests if method == "POST") == "run/config.toml"


def test_files_that_are_gone_are_deleted_there(buckets: Buckets, tmp_path: Path) -> None:
    """A tracker writes its files anew when a run resumes: with the earlier ones, every step would be there twice."""
    for name in ("events.1", "events.2"):
        with run_folder("s3://bucket/run", tmp_path / name, quiet) as (folder, mirror):
            assert mirror is not None
            mirror.claim()
            (folder / "config.toml").touch()
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)
            (folder / "tensorboard").mkdir()
            (folder / "tensorboard" / name).touch()
        assert buckets.names("bucket") == ["run/config.toml", "run/owner", f"run/tensorboard/{name}"]


def test_a_folder_in_use_or_of_something_else_is_refused(buckets: Buckets, tmp_path: Path) -> None:
    url = "gs://bucket/run"
    one = Session(url, tmp_path)
    with pytest.raises(RunError, match="another process on this machine is using gs://bucket/run"):
        Mirror(url, tmp_path).pull(quiet)
    one.close()
    Store("gs://bucket/data").write("wiki.jsonl", b"")
    with pytest.raises(RunError, match="gs://bucket/data is not empty and is not a run"):
        Mirror("gs://bucket/data", tmp_path).pull(quiet)
    with pytest.raises(ValueError, match="has an empty part"):
        Mirror("gs://bucket/a/../b", tmp_path)


def test_a_start_that_is_refused_leaves_the_running_process_alone(buckets: Buckets, tmp_path: Path) -> None:
    url = "s3://bucket/run"
    one = Session(url, tmp_path / "one")
    one.step(1)
    written = buckets.names("bucket")
    with (
        pytest.raises(RunError, match=r"different values of train\.batch_size"),
        run_folder(url, tmp_path / "two", quiet) as (folder, _),
    ):
        RunFolder(folder, card(batch_size=7))
    assert buckets.names("bucket") == written
    with run_folder(url, tmp_path / "three", quiet) as (_, late):
        assert late is not None
        one.step(2)
        with pytest.raises(RunError, match=f"another process is writing the run in {url}"):
            late.claim()
    one.step(3)
    one.close()


@pytest.mark.parametrize("command", [["eval"], ["report"], ["export", "there"], ["convert", "there", "--to", "hf"]])
def test_other_commands_refuse_object_storage(command: list[str]) -> None:
    name, *more = command
    found = CliRunner().invoke(cli.app, [name, "gs://bucket/run", *more])
    assert found.exit_code == 2
    assert "gs://bucket/run is on object storage; copy it to a local folder first" in found.output


# ------------------------------------------------------------------------------------------------------------- a run
SMALL = (
    "train.steps=3",
    "train.save_every=1",
    "train.keep=3",
    "train.batch_size=4",
    "evaluate.sets=[]",
    "rollout.slots=8",
    "ssp.solver.samples=2",
    "data.answers=s3://bucket/data/answers.jsonl",
)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_killed_run_on_object_storage_ends_with_the_same_bits(scheme: str, buckets: Buckets, tmp_path: Path) -> None:
    plain = load_card(runs.ROOT / "configs" / "ssp" / "atlas.toml")
    Store("s3://bucket/data").write("answers.jsonl", (runs.ROOT / str(plain.data.answers)).read_bytes())

    def command(name: str, spool: str) -> list[str]:
        url = f"{scheme}://bucket/{name}"
        return runs.command("ssp/atlas.toml", url, [*SMALL, f"train.spool={tmp_path / spool}"])

    runs.finish(command("whole", "first"))
    store = Store(f"{scheme}://bucket/killed")
    runs.kill_when(command("killed", "second"), lambda: f"checkpoints/2/{SEAL}" in store.names())
    shutil.rmtree(tmp_path / "second")  # another machine
    runs.finish(command("killed", "third"))
    whole, killed = (fetch(f"{scheme}://bucket/{name}", tmp_path / "compared") for name in ("whole", "killed"))
    assert (killed / "report" / "index.html").is_file()
    runs.same(whole, killed)
