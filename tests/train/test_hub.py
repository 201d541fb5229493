"""Models of the hub: a fake of its HTTP interface on the loopback, the library's own client and cache."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from huggingface_hub import constants

from scope_jax.config import load_card
from scope_jax.run import hub
from scope_jax.run.fetching import fetched

ROOT = Path(__file__).parents[2]
BASE = ROOT / "assets" / "atlas" / "ssp" / "base"
COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """One model, someone/tiny, with Atlas's files, beside files that are not to be downloaded; one that is gated."""

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
        files = {file.name: file.read_bytes() for file in BASE.iterdir() if file.is_file()}
        files |= {"original/weights.safetensors": b"x", "picture.png": b"x"}
        if self.down:
            self._answer(503, b"")
        elif path.startswith("/api/models/someone/tiny/tree/"):
            self._json(
                [{"type": "file", "path": name, "size": len(own), "oid": _oid(own)} for name, own in files.items()]
            )
        elif path.startswith("/api/models/someone/tiny"):
            self._json({"id": "someone/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
        elif path.startswith(f"/someone/tiny/resolve/{COMMIT}/"):
            own = files[path.removeprefix(f"/someone/tiny/resolve/{COMMIT}/")]
            self._answer(200, own, ETag=f'"{_oid(own)}"')
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


def test_a_tokenizer_is_had_without_weights(server: type[Hub]) -> None:
    folder = hub.snapshot("someone/tiny", weights=False)
    assert (folder / "tokenizer.json").is_file() and not list(folder.glob("*.safetensors"))


def test_what_cannot_be_had_is_one_sentence(server: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (
        ("someone/none", r"someone/none is neither a folder here nor a model of the hub; correct the name, or set"),
        ("someone/locked", r"someone/locked asks for permission: accept its terms on .* page of the hub, and set HF_"),
    ):
        with pytest.raises(FileNotFoundError, match=f"^the model {said}"):
            hub.snapshot(name)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    with pytest.raises(FileNotFoundError, match=r"nor in the hub's cache, and the hub cannot be reached; give a fo"):
        hub.snapshot("someone/tiny")


def test_paths_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    names = ("Qwen/Qwen3-8B", "mine/base", "checkpoints/Qwen3-8B", "/a/b", "a/b/c", "base", "../base", "a/b.c")
    assert [name for name in names if hub.is_name(name)] == ["Qwen/Qwen3-8B", "a/b.c"]
