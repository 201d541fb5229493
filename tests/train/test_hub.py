"""Models of the hub: a fake of its HTTP interface on the loopback, the library's own client and cache."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from huggingface_hub import constants
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.config import EncoderSection
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.models.files.weights import WeightsError, load_config
from scope_jax.plan.architectures import model_of
from scope_jax.run import fetching, indexing
from scope_jax.run.fetching import fetched
from tests.retrieval import tiny_encoders

ROOT = Path(__file__).parents[2]
BASE = ROOT / "assets" / "atlas" / "ssp" / "base"
COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """One model, someone/tiny, with Atlas's files, beside files that are not to be downloaded; one that is gated."""

    models: ClassVar[dict[str, dict[str, bytes]]] = {}
    asked: ClassVar[list[str]] = []
    down: ClassVar[bool] = False

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        type(self).asked.append(path)
        owner, model, rest = (path.removeprefix("/api/models").removeprefix("/") + "//").split("/", 2)
        name, rest = f"{owner}/{model}", rest.rstrip("/")
        files = self.models.get(name)
        if self.down:
            self._answer(503, b"")
        elif files is not None and rest.startswith("tree/"):
            self._json([{"type": "file", "path": at, "size": len(own), "oid": _oid(own)} for at, own in files.items()])
        elif files is not None and rest.startswith(f"resolve/{COMMIT}/"):
            own = files[rest.removeprefix(f"resolve/{COMMIT}/")]
            self._answer(200, own, ETag=f'"{_oid(own)}"')
        elif files is not None:
            self._json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": at} for at in files]})
        elif "/locked" in path:
            self._answer(403, b"", X_Error_Code="GatedRepo")
        else:
            self._answer(404, b"", X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def _oid(contents: bytes) -> str:
    return hashlib.sha1(contents).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    files = {file.name: file.read_bytes() for file in BASE.iterdir() if file.is_file()}
    files |= {"original/weights.safetensors": b"x", "picture.png": b"x"}
    monkeypatch.setattr(Hub, "models", {"someone/tiny": files})
    monkeypatch.setattr(Hub, "asked", [])
    monkeypatch.setattr(Hub, "down", False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{listening.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        files = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the tests are, otherwise
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.chdir(tmp_path)
        yield Hub
        listening.shutdown()


def test_a_card_may_name_a_model_of_the_hub(server: type[Hub]) -> None:
    told: list[str] = []
    card = load_card(ROOT / "configs" / "ssp" / "atlas.toml", ["model.checkpoint=someone/tiny"])
    cfg = fetched(card, told.append)
    folder = Path(cfg.model.checkpoint)
    assert card.model.checkpoint == "someone/tiny" and told == [
        "looking for someone/tiny on the hub; it is downloaded if it is not in the cache"
    ]
    names = {file.name for file in BASE.iterdir() if file.is_file()}
    assert {file.name for file in folder.iterdir()} == names - {name for name in names if name.endswith(".md")}
    assert all((folder / file.name).read_bytes() == (BASE / file.name).read_bytes() for file in folder.iterdir())
    server.down = True  # the cache is enough
    assert fetched(card).model.checkpoint == cfg.model.checkpoint


def test_an_index_and_its_server_need_the_encoder_and_not_the_policy(
    server: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["model.checkpoint=someone/none", "retrieval.encoder.checkpoint=someone/tiny", "retrieval.index=index"]
    words = [word for one in sets for word in ("--set", one)]
    opened: list[str] = []

    def neural(card: EncoderSection, mesh: object) -> None:
        opened.append(card.checkpoint or "")
        raise UserError("enough")

    monkeypatch.setattr(indexing, "neural", neural)
    for command in (["index"], ["search", "--port", "0"]):
        found = CliRunner().invoke(app, [*command, str(ROOT / "configs" / "ssp" / "atlas.toml"), *words])
        assert found.exit_code == 2 and "enough" in found.stderr, found.stderr
    assert opened == [str(fetching.snapshot("someone/tiny"))] * 2
    assert not any("someone/none" in path for path in server.asked)


OTHERS = (
    *("pytorch_model.bin", "handler.py", "onnx/model.onnx", "onnx/config.json", "openvino/openvino_model.xml"),
    *("openvino/model.safetensors", "1_Pooling/own.py", "2_Dense/pytorch_model.bin", "2_Dense/onnx/model.safetensors"),
    *("0_Transformer/model.safetensors", "2_Other/config.json", "original/modules.json"),
)


def test_an_encoder_comes_with_its_modules(server: type[Hub], tmp_path: Path) -> None:
    """And with nothing else of folders inside it; its vectors are those of the folder that was put on the hub."""
    made = tiny_encoders.write_bert(tmp_path / "made")
    tiny_encoders.write_modules(made, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    tiny_encoders.write_dense(made, 24, "torch.nn.modules.activation.Tanh")
    (made / "3_Normalize").mkdir()
    (made / "3_Normalize" / "config.json").write_text("{}")
    (made / "sentence_bert_config.json").write_text('{"max_seq_length": 24, "do_lower_case": false}')
    (made / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: ", "document": "d: "}}')
    files = {path.relative_to(made).as_posix(): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert len(files) == 10
    server.models["someone/encoder"] = files | dict.fromkeys(OTHERS, b"x")
    sets = ["retrieval.encoder.checkpoint=someone/encoder"]
    card = load_card(ROOT / "configs" / "ssp" / "atlas.toml", sets)
    section = fetched(card, only=("retrieval",)).retrieval
    assert section is not None and section.encoder.checkpoint is not None
    folder = Path(section.encoder.checkpoint)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == set(files)
    embedder, local = (
        indexing.neural(section.encoder.model_copy(update={"checkpoint": str(place)}), None) for place in (folder, made)
    )
    assert embedder is not None and local is not None and embedder.identity == local.identity
    assert (embedder.query_prefix, embedder.passage_prefix) == ("q: ", "d: ")
    assert embedder.passages(["the river"]).shape == (1, 24)
    np.testing.assert_array_equal(embedder.passages(["the river"]), local.passages(["the river"]))
    server.down = True  # the cache is enough
    assert fetching.snapshot("someone/encoder") == folder


@pytest.mark.parametrize("place", ["../x", "/etc", "a/../../b", 3])
def test_modules_outside_the_model_are_not_asked_for(server: type[Hub], place: object) -> None:
    modules = [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": place}]
    server.models["someone/odd"] = {"config.json": b"{}", "modules.json": json.dumps(modules).encode()}
    with pytest.raises(WeightsError, match=r"modules\.json names .*, which is not a file in the same folder"):
        fetching.snapshot("someone/odd")


def test_a_tokenizer_is_had_without_weights(server: type[Hub]) -> None:
    folder = fetching.snapshot("someone/tiny", fetching.SMALL)
    assert (folder / "tokenizer.json").is_file() and not list(folder.glob("*.safetensors"))


def test_what_cannot_be_had_is_one_sentence(server: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (
        ("someone/none", r"someone/none is neither a folder here nor a model of the hub; correct the name, or set"),
        ("someone/locked", r"someone/locked asks for permission: accept its terms on .* page of the hub, and set HF_"),
    ):
        with pytest.raises(FileNotFoundError, match=f"^the model {said}"):
            fetching.snapshot(name)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    with pytest.raises(FileNotFoundError, match=r"nor in the hub's cache, and the hub cannot be reached; give a fo"):
        fetching.snapshot("someone/tiny")


def test_a_plan_needs_only_the_config_of_a_model(server: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = model_of("someone/tiny", None)
    assert model == load_config(BASE) and source == "config.json of someone/tiny on the hub"
    assert [path.rpartition("/")[2] for path in server.asked if "/resolve/" in path] == ["config.json"] * 2  # HEAD, GET
    with pytest.raises(FileNotFoundError, match=r"^the model someone/none is neither a folder here nor a model of"):
        model_of("someone/none", None)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    assert model_of("someone/tiny", None)[0] == model  # from the cache
    known, source = model_of("someone/Qwen3-8B", None)
    assert known.num_layers == 36 and source == "public figures of Qwen3-8B"
    with pytest.raises(
        UserError, match=r"^the model someone/other .* the hub cannot be reached; .* --model-config FILE"
    ):
        model_of("someone/other", None)


def test_new_writes_a_card_with_a_model_of_the_hub(server: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    atlas = BASE.parents[1]

    def new(name: str, model: str) -> Result:
        files = ("--data", str(atlas / "answers.jsonl"), "--corpus", str(atlas / "corpus.jsonl"))
        files = (*files, "--set", f"ssp.prompts={atlas / 'prompts' / 'ssp'}")
        return CliRunner().invoke(app, ["new", name, "--game", "ssp", "--model", model, *files])

    made = new("a.toml", "someone/tiny")
    assert made.exit_code == 0 and "ok     data: " in made.stdout and "tokenizer and template" not in made.stdout
    said = "not checked: the weights and the tokenizer of someone/tiny; scope-jax check downloads and opens them"
    assert said in made.stderr
    assert not [path for path in server.asked if path.endswith((".safetensors", "tokenizer.json"))]
    card = load_card("a.toml")
    assert card.model.checkpoint == "someone/tiny"
    assert card.rollout.max_length == load_config(BASE).max_positions < 4096
    assert new("b.toml", "someone/none").exit_code == 2 and not Path("b.toml").exists()
    checked = CliRunner().invoke(app, ["check", "a.toml"])
    assert checked.exit_code == 0 and "ok     tokenizer and template: " in checked.stdout
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    cut_off = CliRunner().invoke(app, ["check", "a.toml", "--set", "model.checkpoint=someone/other"])
    assert cut_off.exit_code == 2 and "WRONG  model someone/other: " in cut_off.stdout
    assert "the hub cannot be reached" in cut_off.stdout and "ok     data: " in cut_off.stdout
    for name, model in (("c.toml", "someone/Qwen3-8B-Base"), ("d.toml", "someone/other")):
        made = new(name, model)
        assert made.exit_code == 0 and load_card(name).rollout.max_length == 4096
        assert f"not checked: config.json, the weights and the tokenizer of {model}; " in made.stderr
        assert "the hub cannot be reached" in made.stderr


def test_paths_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    names = ("Qwen/Qwen3-8B", "mine/base", "checkpoints/Qwen3-8B", "/a/b", "a/b/c", "base", "../base", "a/b.c")
    assert [name for name in names if fetching.is_name(name)] == ["Qwen/Qwen3-8B", "a/b.c"]
