"""Runs of TRL's GRPOTrainer: `PYTHON -m benchmarks.curves.trl_run SEED …` prints the curve of each as a JSON line.

With `--ours` it samples nothing: it learns from the completions of our run with that seed, so that what is left is the
difference of the learners.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]  # in the peer's environment

from benchmarks.curves import task

STRAY = [150]  # the token of a byte that is no character by itself


class Exams(TrainerCallback):
    """Greedy answers by transformers' `generate` before the first step and after every few."""

    def __init__(self, record: task.Record, tokenizer: Any) -> None:
        self._record, self._tokenizer = record, tokenizer

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self._exam(model)

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        if state.global_step % task.EVERY == 0:
            self._exam(model)

    def _exam(self, model: Any) -> None:
        def greedy(prompts: list[str]) -> list[str]:
            encoded = self._tokenizer(prompts, return_tensors="pt")  # prompts are of one length
            with torch.no_grad():
                ids_BT = model.generate(**encoded, do_sample=False, max_new_tokens=task.ANSWER)
            return self._tokenizer.batch_decode(ids_BT[:, task.PROMPT :], skip_special_tokens=True)

        self._record.exam(greedy)


class Ours:
    """A `rollout_func` that samples nothing: it returns the completions of our run, step by step."""

    def __init__(self, seed: int, tokenizer: Any) -> None:
        self._tokenizer, self._step = tokenizer, 0
        self._episodes = task.read(task.FOLDER / "ours" / f"seed-{seed}" / "episodes.jsonl")

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        self._step += 1
        episodes = [episode for episode in self._episodes if episode["step"] == self._step]
        if [episode["group"] for episode in episodes] != list(map(str, prompts)):
            raise ValueError(f"Step {self._step} of our run has other prompts.")
        completions = list(map(self._completion, episodes))
        return {"prompt_ids": list(map(self._ids, prompts)), "completion_ids": completions, "logprobs": None}

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(str(text), add_special_tokens=False)["input_ids"]

    def _completion(self, episode: task.Row) -> list[int]:
        # A byte that is no text has left a replacement character in the record, for which some such byte stands here.
        ids = [
            id
            for letter in episode["text"]["prediction"]
            for id in (STRAY if letter == "\ufffd" else self._ids(letter))
        ]
        return ids + [self._tokenizer.eos_token_id] * (episode["sampled"] - len(ids))


def config(outputs: str, seed: int, **changes: Any) -> GRPOConfig:
    """The settings of card.toml under TRL's names."""
    optimizer, loss = task.OPTIMIZER, task.LOSS
    settings: dict[str, Any] = {
        "output_dir": outputs,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "gradient_accumulation_steps": 1,
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": task.PROMPTS * task.SAMPLES,
        "num_generations": task.SAMPLES,
        "max_completion_length": task.ANSWER,
        "shuffle_dataset": False,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "beta": 0.0,
        "epsilon": loss["clip_low"],
        "epsilon_high": loss["clip_high"],
        "loss_type": "grpo",
        "scale_rewards": "none",
        "learning_rate": optimizer["learning_rate"],
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "adam_beta1": optimizer["beta1"],
        "adam_beta2": optimizer["beta2"],
        "adam_epsilon": optimizer["eps"],
        "weight_decay": optimizer["weight_decay"],
        "max_grad_norm": optimizer["max_grad_norm"],
        "max_steps": task.STEPS,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": seed,
    }
    return GRPOConfig(**settings | changes)


def main(seed: int, ours: bool) -> None:
    record = task.Record()
    tokenizer = AutoTokenizer.from_pretrained(task.FOLDER / "base", padding_side="left", trust_remote_code=False)
    with tempfile.TemporaryDirectory() as outputs:

        def rewards(prompts: list[str], completions: list[str], **_: Any) -> Any:
            return record.rewards(prompts, completions)

        trainer = GRPOTrainer(
            model=str(task.FOLDER / "base"),
            reward_funcs=rewards,
            args=config(outputs, seed),
            train_dataset=Dataset.from_list([{"prompt": row["question"]} for row in record.trained]),
            processing_class=tokenizer,
            callbacks=[Exams(record, tokenizer)],
            rollout_func=Ours(seed, tokenizer) if ours else None,
        )
        trainer.train()
    versions = {name: version(name) for name in ("trl", "transformers", "torch")}
    print(json.dumps(record.curve | {"versions": versions}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # for a model as small as this, more are slower
    for seed in map(int, filter(str.isdecimal, sys.argv[1:])):
        main(seed, "--ours" in sys.argv)
