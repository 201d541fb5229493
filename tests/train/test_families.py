"""A model of each newer family through the product in one sitting: plan, training of whole weights and of an adapter,
what is exported in transformers and PEFT, and a server whose client has tools."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.models.files.weights import load_hf
from tests.equivalence.test_families import our_logits, published, tolerance_of, torch_logits, torch_model
from tests.play.byte_tokenizer import tokenizer_in
from tests.serving.test_commands import process

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
from safetensors.torch import save_file  # noqa: E402

CARD, BASE = "configs/ssp/atlas.toml", Path("assets/atlas/ssp/base")
# Case of tests/equivalence/test_families.py: marks, template and dialect of its chats.
FORMS = {
    "mistral": ("mistral", "mistral_v3", "mistral"),
    "ministral3": ("mistral", "mistral", "mistral"),
    "smollm3": ("smollm3", "smollm3", "hermes"),
    "qwen3_5": ("qwen3_5", "qwen3_5", "qwen-coder"),
    "qwen3_5_moe": ("qwen3_5", "qwen3_5", "qwen-coder"),
    "olmo_hybrid": ("qwen3_5", "../games/olmo3", "function"),
    "gemma3": ("gemma3", "gemma3", "xml"),
    "gemma4": ("gemma4", "gemma4", "gemma"),
    "gemma4_moe": ("gemma4", "gemma4", "gemma"),
    "gemma4_e2b": ("gemma4", "gemma4", "gemma"),
    "gpt_oss": ("harmony", "harmony", "harmony"),
}
SHORT = (
    *("train.steps=1", "train.save_every=1", "train.batch_size=2", "evaluate.sets=[]", "rollout.slots=4"),
    *("ssp.solver.samples=2", "ssp.solver.sampling.max_tokens=6", "ssp.proposer.sampling.max_tokens=6"),
    *("optimizer.warmup_steps=1", "optimizer.learning_rate=1e-2"),
)
ADAPTER = ("model.adapter.rank=4", "model.adapter.alpha=8", "model.adapter.base_dtype=float32")
SERVED = ("model.compute_dtype=float32", "rollout.slots=2", "rollout.max_length=2048")
NUMBERS = {name: {"type": "integer", "description": f"The {name}."} for name in ("first", "second")}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": NUMBERS, "required": [*NUMBERS]},
    },
}


def done(*words: object) -> None:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)


def sets(*words: str) -> list[str]:
    return [word for one in words for word in ("--set", one)]


def checkpoint(case: str, folder: Path) -> Path:
    """A random model with the vocabulary of Atlas."""
    second = {"vocab_size_per_layer_input": 1248} if case == "gemma4_e2b" else {}
    model = torch_model(case, vocab_size=1248, max_position_embeddings=2048, **second)
    model.save_pretrained(folder)
    if case == "olmo_hybrid":
        save_file(published(model, model.state_dict()), folder / "model.safetensors", {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(BASE / name, folder / name)
    return folder


def in_torch(folder: Path, adapter: Path | None = None) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return (model if adapter is None else peft.PeftModel.from_pretrained(model, adapter)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("case", FORMS)
def test_a_family_from_its_folder_to_a_server(case: str, tmp_path: Path) -> None:
    base = checkpoint(case, tmp_path / "base")
    ids_BT = np.random.default_rng(0).integers(0, 1232, (2, 24)).astype(np.int32)
    of_base = torch_logits(in_torch(base), ids_BT)
    own = sets(f"model.checkpoint={base}", *SHORT)
    done("plan", CARD, "--quick", "--on", "1xH100", *own)

    done("train", CARD, "--run", tmp_path / "whole", *own)
    done("export", tmp_path / "whole", tmp_path / "exported", "--dtype", "float32")
    trained = torch_logits(in_torch(tmp_path / "exported"), ids_BT)
    cfg, params = load_hf(tmp_path / "exported")
    assert np.abs(trained - of_base).max() > 0.01
    assert np.abs(np.asarray(our_logits(cfg, params, ids_BT)) - trained).max() <= 3 * tolerance_of(cfg)

    done("train", CARD, "--run", tmp_path / "run", *own, *sets(*ADAPTER))
    done("export", tmp_path / "run", tmp_path / "adapter", "--dtype", "float32")
    done("export", tmp_path / "run", tmp_path / "merged", "--merge", "--dtype", "float32")
    adapted = torch_logits(in_torch(base, tmp_path / "adapter"), ids_BT)
    merged = torch_logits(in_torch(tmp_path / "merged"), ids_BT)
    assert np.abs(adapted - of_base).max() > 0.001
    assert np.abs(adapted - merged).max() <= 3 * tolerance_of(cfg)

    marks, template, dialect = FORMS[case]
    (tmp_path / "chat").mkdir()
    tokenizer_in(tmp_path / "chat", marks, template)
    with process(
        *("serve", str(tmp_path / "adapter"), "--port", "0"),
        *sets(f"model.tokenizer={tmp_path / 'chat'}", f"model.dialect={dialect}", *SERVED),
    ) as (_, url):
        converse(url)


def converse(url: str) -> None:
    """A question with tools and log-probs, the same in pieces, and a call with its result."""
    with httpx.Client(trust_env=False, timeout=300) as client:
        model = client.get(f"{url}/models").json()["data"][0]["id"]

        def ask(messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
            body = {"model": model, "messages": messages, "tools": [ADD], "max_tokens": 8, "seed": 1, **more}
            answer = client.post(f"{url}/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer

        question = {"role": "user", "content": "2 + 3?"}
        whole = ask([question], logprobs=True).json()["choices"][0]
        scores = [one["logprob"] for one in whole["logprobs"]["content"]]
        assert scores and all(score <= 0 for score in scores)
        pieces = [
            json.loads(line.removeprefix("data: "))
            for line in ask([question], stream=True).text.splitlines()
            if line.startswith("data: {")
        ]
        said = "".join(one["choices"][0]["delta"].get("content") or "" for one in pieces if one["choices"])
        assert said == (whole["message"]["content"] or "")
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"first": 2, "second": 3}'},
        }
        answered = [question, {"role": "assistant", "content": None, "tool_calls": [call]}]
        ask([*answered, {"role": "tool", "tool_call_id": "call_1", "content": "5"}])
