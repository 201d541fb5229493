"""The gradient of one small batch by the losses of TRL and Tunix: `PYTHON -m benchmarks.curves.gradients trl|tunix`.

Prints a JSON object for tests/learner/peers.json, with which tests/learner/test_peers.py compares the learner: by case
the loss and, for each tensor, the gradient's norm and its product with the weights, which do not depend on its layout.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "max_position_embeddings": 64,
}
PAD = 31  # never sampled
PROMPT, LENGTHS = 4, (5, 3, 1, 5, 2, 4)  # tokens of each prompt, and of the completions
CLIP, KL_COEF = 0.2, 0.3
CASES = {"clip": None, "k3-plain": False, "k3": True}  # by name of our `kl`: TRL's use_bias_correction_kl
WIDTHS = {"q_proj": (16, 16), "k_proj": (8, 16), "v_proj": (8, 16), "o_proj": (16, 16), "q_norm": (8,), "k_norm": (8,)}


def save_model(folder: Path, seed: int) -> dict[str, np.ndarray]:
    """Writes a model with random weights, norms included, as a Hugging Face folder; returns its tensors."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 16), "model.norm.weight": (16,)}
    layer = {f"self_attn.{name}": shape for name, shape in WIDTHS.items()}
    layer |= {"mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16), "mlp.down_proj": (16, 24)}
    layer |= {"input_layernorm": (16,), "post_attention_layernorm": (16,)}
    shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
    rng = np.random.default_rng(seed)
    normal = {name: rng.standard_normal(shape) for name, shape in sorted(shapes.items())}
    tensors = {
        name: (value * 0.2 if value.ndim > 1 else 1 + value * 0.2).astype(np.float32) for name, value in normal.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tensors


def batch() -> dict[str, np.ndarray]:
    """prompt_ids [6, 4], completion_ids and completion_mask [6, 5], advantages [6], old log-probs [6, 5]: those of a
    uniform policy and noise, so that the ratios of many tokens are clipped, in both directions."""
    rng = np.random.default_rng(2)
    rows = len(LENGTHS)
    mask_BT = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return {
        "prompt_ids": rng.integers(0, PAD, (rows, PROMPT)).astype(np.int32),
        "completion_ids": np.where(mask_BT, rng.integers(0, PAD, mask_BT.shape), PAD).astype(np.int32),
        "completion_mask": mask_BT,
        "advantages": rng.standard_normal(rows).astype(np.float32),
        "old_per_token_logps": (rng.normal(0, 0.3, mask_BT.shape) - np.log(32)).astype(np.float32),
    }


def measured(loss: float, gradient: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """What is compared: numbers of float64."""
    pairs = {name: (gradient[name].astype(np.float64).ravel(), weights[name].astype(np.float64)) for name in weights}
    return {"loss": loss} | {
        name: [float(np.linalg.norm(g)), float(g @ w.ravel())]
        for name, (g, w) in pairs.items()
        if gradient[name].shape == w.shape
    }


def trl(folder: Path, case: str) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, gradient by name) of GRPOTrainer._compute_loss."""
    import torch
    from datasets import Dataset
    from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]

    from benchmarks.curves.trl_run import config
    from benchmarks.peers.trl_grpo import tokenizer

    changes = {"beta": KL_COEF, "use_bias_correction_kl": CASES[case]} if CASES[case] is not None else {}
    trainer: Any = GRPOTrainer(
        model=str(folder / "policy"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config(str(folder / "outputs"), 0, epsilon=CLIP, epsilon_high=CLIP, **changes),
        train_dataset=Dataset.from_list([{"prompt": "1"}]),
        processing_class=tokenizer("update"),
    )
    inputs: dict[str, Any] = {name: torch.from_numpy(np.array(value)) for name, value in batch().items()}
    inputs |= {name: inputs[name].long() for name in ("prompt_ids", "completion_ids", "completion_mask")}
    inputs["prompt_mask"] = torch.ones_like(inputs["prompt_ids"])
    if case != "clip":
        saved = load_file(folder / "reference" / "model.safetensors")
        trainer.ref_model.load_state_dict(
            {name: torch.from_numpy(value) for name, value in saved.items()}, strict=False
        )
        ids, mask = (torch.cat([inputs[f"prompt_{of}"], inputs[f"completion_{of}"]], 1) for of in ("ids", "mask"))
        with torch.no_grad():
            scored = trainer._get_per_token_logps_and_entropies(trainer.ref_model, ids, mask, max(LENGTHS))
        inputs["ref_per_token_logps"] = scored[0]
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), {name: weight.grad.numpy() for name, weight in trainer.model.named_parameters()}


def tunix(folder: Path, case: str) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, gradient by name) of the policy loss `grpo`, as GRPOLearner calls it, in the layout of the folder."""
    import jax
    from flax import nnx
    from tunix.models.qwen3 import params  # pyright: ignore[reportMissingImports]
    from tunix.rl import common, function_registry  # pyright: ignore[reportMissingImports]
    from tunix.rl.grpo.grpo_learner import TrainExample  # pyright: ignore[reportMissingImports]

    from benchmarks.curves import tunix_run

    given = {name: jax.numpy.asarray(value) for name, value in batch().items()}
    policy, reference = (tunix_run.model(folder / name, CONFIG) for name in ("policy", "reference"))
    ends = {"pad_id": PAD, "eos_id": PAD}
    scored = common.compute_per_token_logps(
        *nnx.split(reference), given["prompt_ids"], given["completion_ids"], **ends, stop_gradient=True
    )
    example = TrainExample(
        **given,
        prompt_mask=given["prompt_ids"] >= 0,
        ref_per_token_logps=None if case == "clip" else scored,
    )
    settings = tunix_run.settings(epsilon=CLIP, beta=0.0 if case == "clip" else KL_COEF, kl_loss_mode="low_var_kl")
    settings.temperature = 1.0
    rule: Callable[..., Any] = function_registry.get_policy_loss_fn(settings.policy_loss_fn)
    (loss, _), found = nnx.value_and_grad(
        lambda model: rule(model, example, algo_config=settings, **ends), has_aux=True
    )(policy)
    by_path = {".".join(map(str, path)): np.asarray(leaf) for path, leaf in nnx.to_flat_state(found)}
    gradient = {}
    for name, weight in load_file(folder / "policy" / "model.safetensors").items():
        rules = params._get_key_and_transform_mapping(policy.config).items()
        path, rule_ = next(
            (re.sub(pattern, to, name), how) for pattern, (to, how) in rules if re.fullmatch(pattern, name)
        )
        value = by_path[path]
        gradient[name] = value.reshape(weight.T.shape).T if rule_ else value
    return float(loss), gradient


def main(peer: str) -> None:
    of, package = {"trl": (trl, "trl"), "tunix": (tunix, "google-tunix")}[peer]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weights = save_model(folder / "policy", 0)
        save_model(folder / "reference", 1)
        cases = ("clip", "k3-plain", "k3") if peer == "trl" else ("clip", "k3-plain")
        results = {case: measured(*of(folder, case), weights) for case in cases}
    print(json.dumps({"package": package, "version": version(package), "cases": results}))


if __name__ == "__main__":
    main(sys.argv[1])
