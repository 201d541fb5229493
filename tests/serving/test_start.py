"""What a model folder must have before it is served: its vocabulary, its template, and where its replies end."""

from __future__ import annotations

import json
import logging
import queue
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.rollouts.online import Done
from scope_jax.serving import assemble
from scope_jax.serving.assemble import Served, served
from scope_jax.serving.generating import Job, chat_job, completion_job, requests_of
from scope_jax.serving.protocol import ChatBody, CompletionBody, parsed
from scope_jax.serving.server import warm_up
from tests.serving.test_api import greedy, said, user
from tests.serving.world import BASE, ROOT, SETTINGS, offline, questions

ENGINE = [one for one in SETTINGS if not one.startswith("retrieval")]


def copied(folder: Path, base: Path = BASE, **roles: Any) -> Path:
    """A base of Atlas with other entries in tokenizer_config.json."""
    shutil.copytree(base, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | roles))
    return folder


def without_template(folder: Path) -> Path:
    copied(folder)
    (folder / "chat_template.jinja").unlink()
    return folder


def with_more_tokens(folder: Path, count: int) -> Path:
    """Atlas's base with special tokens beyond its embeddings, which its template writes."""
    copied(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    like = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [like | {"id": first + i, "content": f"<|extra_{i}|>"} for i in range(count)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def refused(*words: object, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    assert result.exit_code == 2, result.output
    said = [line for line in result.stderr.splitlines() if line]
    assert not any("loading" in line or "compiling" in line for line in said), said  # before any weights
    return said[-1]


@pytest.mark.parametrize("command", ["serve", "chat", "eval"])
def test_ids_beyond_the_embeddings_are_refused_at_start(command: str, tmp_path: Path):
    folder = with_more_tokens(tmp_path / "base", 40)
    assert Tokenizer.load(folder).vocab_size > json.loads((folder / "config.json").read_text())["vocab_size"]
    words: list[object] = [command, folder]
    if command == "serve":
        words += ["--port", 0]
    if command == "eval":
        words += ["--card", ROOT / "configs" / "ssp" / "atlas.toml"]
    told = refused(*words, stdin="hello\n")
    assert "tokens but the model in" in told and "embeddings; use the model's own tokenizer." in told


def test_padded_embeddings_are_served(tmp_path: Path):
    """Fewer tokens than rows are what most models have."""
    folder = with_more_tokens(tmp_path / "base", 2)
    with served(folder, None, ENGINE, policy=None, search=False, name=None, grace=0.0, tell=print) as model:
        assert model.tokenizer.vocab_size < 1248


def test_chat_without_a_template_fails_at_start(tmp_path: Path):
    told = refused("chat", without_template(tmp_path / "base"), stdin="hello\n")
    assert "no chat template" in told and "set model.chat_template" in told


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_a_template_that_renders_nothing_is_refused_at_start(command: str, tmp_path: Path):
    folder = copied(tmp_path / "base")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.contents.text }}")
    told = refused(command, folder, *(("--port", 0) if command == "serve" else ()), stdin="hello\n")
    assert "The chat template rejects the conversation" in told


def test_serve_without_a_template_answers_plain_completions(tmp_path: Path):
    folder = without_template(tmp_path / "base")
    with served(folder, None, ENGINE, policy=None, search=False, name=None, grace=0.0, tell=print) as model:
        assert not model.tokenizer.has_template


def test_a_base_layout_stops_where_its_template_ends_a_message(tmp_path: Path):
    """Qwen2.5's base models: every file names the end of a document, only the template ends a message."""
    base = ROOT / "assets" / "atlas" / "spice" / "base"  # it answers in one turn
    folder = copied(tmp_path / "base", base, eos_token="<|endoftext|>")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": config["pad_token_id"]}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": config["pad_token_id"]}))
    told: list[str] = []
    with served(folder, None, ENGINE, policy=None, search=False, name=None, grace=0.0, tell=told.append) as model:
        assert set(model.tokenizer.eos_ids) == {config["pad_token_id"], config["eos_token_id"]}
        body = {"model": "base", "messages": user("Solve: The capital of Zambia is Lusaka. What is it?")}
        job = chat_job(model, parsed(ChatBody, json.dumps(body | {"temperature": 0, "max_tokens": 48}).encode()))
        (ended,) = offline(model).run(requests_of(model, job))
        assert ended.finish_reason == "eos" and int(ended.ids_T[-1]) == config["eos_token_id"]
        assert "<|im_end|>" not in ended.text
        runs_on = replace(job, params=replace(job.params, stop_ids=(config["pad_token_id"],)))  # what the files name
        (limited,) = offline(model).run(requests_of(model, runs_on))
        assert limited.finish_reason == "length" and limited.text.startswith(ended.text + "<|im_end|>")
    assert not any("limit" in line for line in told)


def test_a_template_without_an_end_is_said_when_serving(tmp_path: Path):
    folder = copied(tmp_path / "base")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}")
    told: list[str] = []
    with served(folder, None, ENGINE, policy=None, search=False, name=None, grace=0.0, tell=told.append):
        assert told[0].startswith(
            "ends of replies: the chat template ends a reply with the text '\\n\\n', not with a token"
        )
        assert told[0].endswith("set model.stop to what the model writes after a reply.")


def ended(model: Served, job: Job) -> list[Done]:
    """The ends of a job's samples."""
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()
    model.rollouts.submit(requests_of(model, job), [news.put] * job.size)
    done: list[Done] = []
    while len(done) < job.size:
        if isinstance(one := news.get(timeout=60), Done):
            done.append(one)
    return done


@pytest.mark.slow  # rollouts/test_compile.py has the engine's part
@pytest.mark.parametrize("attention", ["auto", "loop"])
def test_no_request_waits_for_a_program(attention: str, caplog: pytest.LogCaptureFixture):
    """Prompts of every length, replies of every length, searches, pauses: all is compiled before the server listens."""
    own = ["rollout.slots=5", "rollout.max_length=320", f"rollout.attention={attention}"]
    kept = [one for one in SETTINGS if not one.startswith("rollout")]
    settings = [*kept, *own, "rollout.decode_steps=3", "retrieval.top_k=2"]
    with served(BASE, None, settings, policy=None, search=True, name="atlas", grace=0.0, tell=print) as model:
        warm_up(model)
        before = jax.config.jax_log_compiles  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_log_compiles", True)
        try:
            with caplog.at_level(logging.WARNING, "jax"):
                for tokens in (1, 2, 31, 32, 33, 65, 140, 151, 300):
                    body = {"model": "atlas", "prompt": [5] * tokens, "max_tokens": 19, "n": 3}
                    assert (
                        len(ended(model, completion_job(model, parsed(CompletionBody, json.dumps(body).encode())))) == 3
                    )
                chat = {"model": "atlas", "messages": user(questions(1)[0]), "max_tokens": 90, "temperature": 0}
                job = chat_job(model, parsed(ChatBody, json.dumps(chat | {"web_search_options": {}}).encode()))
                (done,) = ended(model, job)
        finally:
            jax.config.update("jax_log_compiles", before)
        assert done.completion is not None and "Doc 1 (Title" in done.completion.text
        assert [one.message for one in caplog.records if "Compiling" in one.message] == []
        prompt = model.tokenizer.encode_chat(user(questions(1)[0]))
        (plain,) = ended(
            model, completion_job(model, CompletionBody(model="atlas", prompt=prompt, temperature=0, max_tokens=12))
        )
        assert plain.completion is not None and said(model, plain.completion) == said(
            model, greedy(model, [prompt], 12)[0]
        )


def test_a_server_keeps_its_programs(monkeypatch):
    folders = []
    monkeypatch.setattr(assemble, "keep_programs", folders.append)
    with served(BASE, None, ENGINE, policy=None, search=False, name=None, grace=0.0, tell=print):
        assert folders == [".cache/jax"]
