"""TRL's GRPOTrainer: its generation, its scoring and loss, and whole steps of its training loop.

Runs in an environment of its own. A trainer's loop runs in a thread, and waits before each step until it is asked for.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]  # in the peer's environment

from benchmarks.peers import cases
from benchmarks.peers.worker import Cannot, Work, cores


def tokenizer(case: str) -> PreTrainedTokenizerFast:
    """Ids separated by spaces; the end and padding tokens lie outside of the model's vocabulary: never sampled."""
    count = cases.shape(case)[1]["vocab_size"]
    vocabulary = {str(id): id for id in range(count)} | {"<end>": count, "<pad>": count + 1}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<pad>", padding_side="left", truncation_side="left"
    )


def rewards(completion_ids: list[list[int]], **_: Any) -> Any:
    """A reward function as GRPOTrainer calls it."""
    return [cases.reward(ids) for ids in completion_ids]


class Gate(TrainerCallback):
    """Lets the trainer take one step for each call of `step`."""

    def __init__(self) -> None:
        self._orders: queue.Queue[None] = queue.Queue()
        self._ends: queue.Queue[BaseException | None] = queue.Queue()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._orders.get()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ends.put(None)

    def start(self, trainer: Any) -> None:
        """Runs the trainer's loop in a thread."""

        def train() -> None:
            try:
                trainer.train()
            except BaseException as error:  # noqa: BLE001  raised again by `step`
                self._ends.put(error)

        threading.Thread(target=train, daemon=True).start()

    def step(self) -> None:
        """One step of the trainer; raises what its loop raised."""
        self._orders.put(None)
        if (error := self._ends.get()) is not None:
            raise error


class Given:
    """A `rollout_func` that samples nothing: the completions of the update, the same at every step."""

    def __init__(self, case: str) -> None:
        self._old, self._prompt = case == "update_old", cases.lengths(case)[0]
        self._ids_BT = cases.rows(case)[0]

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        if self._old:
            old_logprobs(trainer, trainer.model)
        ids = self._ids_BT.tolist()
        return {
            "prompt_ids": [row[: self._prompt] for row in ids],
            "completion_ids": [row[self._prompt :] for row in ids],
            "logprobs": None,
        }


def old_logprobs(trainer: Any, model: Any) -> torch.Tensor:
    """[B, 128] by the function with which the trainer scores, when its steps need old log-probs."""
    ids = torch.from_numpy(cases.rows()[0]).long()
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(model, ids, torch.ones_like(ids), cases.ANSWER)[0]


class Participant:
    """See benchmarks.peers.worker."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(cores())
        self._folder = folder
        self._outputs = tempfile.mkdtemp(prefix="trl-")

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("trl", "transformers", "torch", "accelerate")}

    def logprob(self) -> float:
        trainer = self._trainer(None)
        return float(old_logprobs(trainer, trainer.ref_model).mean())

    def prepare(self, case: str, variant: str) -> Work:
        if case == "ragged":
            raise Cannot("GRPOTrainer samples with one max_completion_length; its batches would be those of generate.")
        if case in cases.GENERATION:
            return self._generate(case)
        gate = Gate()
        trainer = self._trainer(None if case == "step" else Given(case), gate, case=case)
        gate.start(trainer)

        def run() -> int:
            gate.step()
            return int(trainer._metrics["train"]["completions/mean_length"][-1] * len(cases.rows(case)[0]))

        return run

    def _generate(self, case: str) -> Work:
        """The trainer's own generation, as its step calls it."""
        plan, trainer = cases.generation(case), self._trainer(None)
        prompts = [prompt.tolist() for prompt in np.repeat(plan.prompts_PT, plan.samples, axis=0)]

        def run() -> int:
            completions, _ = trainer._generate_single_turn(prompts, None, {}, plan.samples)
            return sum(map(len, completions))

        return run

    def _trainer(self, rollout: Given | None, *callbacks: TrainerCallback, case: str = "step") -> Any:
        """A trainer of the model, at the settings that are fastest on CPUs: no recomputation, no mixed precision."""
        plan = cases.generation("step")
        config = GRPOConfig(
            output_dir=self._outputs,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            per_device_train_batch_size=len(cases.rows(case)[0]),
            num_generations=cases.SHARING if case in cases.SHARED else plan.samples,
            max_completion_length=cases.lengths(case)[1],
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            beta=cases.KL_COEF,
            epsilon=cases.CLIP_LOW,
            epsilon_high=cases.CLIP_HIGH,
            loss_type="grpo",
            scale_rewards="none",
            learning_rate=cases.LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=cases.WEIGHT_DECAY,
            max_grad_norm=cases.MAX_GRAD_NORM,
            optim="adamw_torch_fused",
            max_steps=100_000,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=0,
        )
        codec = cases.Numbers()
        return GRPOTrainer(
            model=os.path.join(self._folder, cases.shape(case)[0]),
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": codec.decode(ids)} for ids in plan.prompts_PT]),
            processing_class=tokenizer(case),
            callbacks=list(callbacks),
            rollout_func=rollout,
        )
