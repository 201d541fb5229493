"""Real passages, the real Qwen tokenizer and template, a random Qwen3: two steps with a stop in between, exported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CARD = "configs/ssp/smoke-wikipedia.toml"


def call(arguments: list[str], data: Path) -> str:
    """Standard output of a command run in the checkout; its last line is JSON where --json was given."""
    environment = os.environ | {"SCOPE_JAX_DATA": str(data.resolve())}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_two_steps_on_real_input(shared_data: Path, tmp_path: Path) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    call(["tests/equivalence/smoke_checkpoint.py", "--out", str(base)], shared_data)
    train = ["-m", "scope_jax", "train", CARD, "--run", str(run), "--json", "--set", f"model.checkpoint={base}"]
    call([*train, "--set", "train.steps=1"], shared_data)
    first = rows(run / "episodes.jsonl")
    result = json.loads(call(train, shared_data).splitlines()[-1])
    assert result["steps"] == 2
    episodes = rows(run / "episodes.jsonl")
    assert episodes[: len(first)] == first
    assert {record["step"] for record in episodes} == {1, 2}

    titles = {row["title"] for row in rows(shared_data / "corpus" / "passages.jsonl")}
    observed = [
        turn["text"] for record in episodes for turn in record["text"]["turns"] if turn["kind"] == "observation"
    ]
    shown = [part.split('")\n', 1)[0] for text in observed for part in text.split('(Title: "')[1:]]
    assert shown
    assert set(shown) <= titles

    folder = tmp_path / "exported"
    call(["-m", "scope_jax", "export", str(run), str(folder)], shared_data)
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    assert prompt
    assert model.config.vocab_size >= len(tokenizer)
