"""What `scope-jax check` says of model folders that cannot be loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NoReturn

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.config import SandboxSection
from scope_jax.environments import sandbox
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.models.files import weights
from scope_jax.run import rules

ROOT = Path(__file__).parents[2]
BASE = ROOT / "assets" / "atlas" / "ssp" / "base"


def finding(folder: Path) -> rules.Finding:
    cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml", [f"model.checkpoint={folder}"])
    return next(found for found in rules.check(cfg) if found.name.startswith("model "))


def test_a_config_of_another_width_is_reported(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "base"))
    assert not finding(folder).wrong
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 1}))
    found = finding(folder)
    assert found.wrong and "but config.json requires" in found.text


def test_an_orbax_file_cut_short_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "orbax"
    weights.save_orbax(folder, *weights.load_hf(BASE), jnp.float32, BASE)
    assert not finding(folder).wrong
    longest = max(
        (path for path in (folder / weights.ORBAX).rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    longest.write_bytes(longest.read_bytes()[:-1])
    found = finding(folder)
    assert found.wrong and "cannot be used" in found.text


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def ends(folder: Path, *overrides: str) -> rules.Finding:
    cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml", [f"model.checkpoint={folder}", *overrides])
    return next(found for found in rules.check(cfg) if found.name == "ends of replies")


def test_what_ends_a_reply_is_said(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "base"))
    found = ends(folder)
    assert found.text == "<|im_end|> (the tokenizer, generation_config.json, the chat template)"
    assert not found.wrong and not found.doubtful
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|endoftext|>"}))
    (folder / "generation_config.json").unlink()
    found = ends(folder)
    assert found.text == "<|endoftext|> (the tokenizer), <|im_end|> (config.json, the chat template)"
    (folder / "chat_template.jinja").write_text(PLAIN)
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | {"eos_token_id": None})
    )
    found = ends(folder)
    assert found.doubtful and not found.wrong
    assert found.text.startswith("the chat template ends a reply with the text '\\n', not with a token")
    assert "replies end with <|endoftext|> (the tokenizer)" in found.text and "set model.stop" in found.text
    found = ends(folder, 'model.stop=["\\nuser:"]')
    assert not found.doubtful and found.text == "<|endoftext|> (the tokenizer), '\\nuser:' (model.stop)"
    (folder / "chat_template.jinja").write_text(
        "{{ raise_exception('one message') if messages | length > 1 else messages[0].content }}"
    )
    assert "does not show how it ends a reply" in ends(folder).text


def test_new_and_check_show_a_doubt(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "base"))
    (folder / "chat_template.jinja").write_text(PLAIN)
    data, corpus = ROOT / "assets" / "atlas" / "answers.jsonl", ROOT / "assets" / "atlas" / "corpus.jsonl"
    new = ["new", tmp_path / "own.toml", "--game", "ssp", "--model", folder, "--data", data, "--corpus", corpus]
    short = ["--set", f"ssp.prompts={ROOT / 'assets' / 'atlas' / 'prompts' / 'ssp'}"]
    for words in ([*new, *short], ["check", tmp_path / "own.toml"]):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        (line,) = [line for line in result.output.splitlines() if "ends of replies" in line]
        assert line.startswith("doubt  ends of replies: the chat template ends a reply with the text")


def test_a_row_is_shown_as_the_model_sees_it(tmp_path: Path) -> None:
    card = str(ROOT / "configs" / "sft" / "atlas.toml")
    rows = [{"prompt": f"{n}?", "completion": "Bern"} for n in range(3)] + [{"prompt": "a?", "completion": "x " * 300}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--set", f"data.conversations={tmp_path / 'rows.jsonl'}", "--set", "learner.buckets=[256]"]
    result = CliRunner().invoke(app, ["check", card, *given])
    assert result.exit_code == 0
    assert (
        "ok     given answers: 4 rows," in result.output and "1 of 4 rows are longer than the largest" in result.output
    )
    assert (
        "| <|im_start|>user\n       | 0?<|im_end|>\n       | <|im_start|>assistant\n       | ⟦Bern<|im_end|>⟧"
        in result.output
    )
    shown = CliRunner().invoke(app, ["check", card, *given, "--json"])
    assert "⟦Bern<|im_end|>⟧" in json.loads(shown.stdout)["given answers"]
    call = {"function": {"name": "f", "arguments": {}}}
    messages = [{"role": "user", "content": "a?"}, {"role": "assistant", "tool_calls": [call]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"messages": messages}]))
    wrong = CliRunner().invoke(app, ["check", card, *given])
    assert wrong.exit_code == 2
    assert (
        "given answers: row 5 of" in wrong.output
        and "messages[1]: the chat template leaves out a call of f" in wrong.output
    )


def test_terminals_are_not_written_to_by_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a\x1b[31m?", "completion": "b"}) + "\n")
    given = ["--set", f"data.conversations={tmp_path / 'rows.jsonl'}"]
    result = CliRunner().invoke(app, ["check", str(ROOT / "configs" / "sft" / "atlas.toml"), *given])
    assert "\x1b" not in result.output and "a\ufffd[31m?" in result.output


def tools_of(*overrides: str) -> rules.Finding:
    cfg = load_card(ROOT / "configs" / "absolute_zero" / "atlas.toml", overrides)
    return next(found for found in rules.check(cfg) if found.name == "services of tools")


def test_a_sandbox_that_cannot_start_is_reported_as_by_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise sandbox.NotStarted("no namespaces here")

    found = tools_of("sandbox.isolation=none")
    assert not found.wrong and found.text == "ready"
    found = tools_of("sandbox.endpoint=http://127.0.0.1:9", "sandbox.retries=0")
    assert found.wrong and "the sandbox at http://127.0.0.1:9 does not run Python" in found.text
    monkeypatch.setattr(sandbox, "_Zygote", refused)
    for isolation, sentence in (("auto", "does not let code of the model be isolated"), ("none", "does not start")):
        found = tools_of(f"sandbox.isolation={isolation}")
        with pytest.raises(UserError) as raised:
            sandbox.Sandbox(SandboxSection.model_validate({"isolation": isolation})).start()
        assert found.wrong and found.text == str(raised.value) and sentence in found.text


def test_an_unisolated_program_that_does_not_run_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.Worker, "run", lambda *_: "MemoryError")
    found = tools_of("sandbox.isolation=none")
    assert found.wrong and "code of the model does not run ('MemoryError')" in found.text
