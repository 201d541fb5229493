"""A run of TRL's GRPOTrainer with the weights, rows, reward and settings of a card of `rlvr`.

    PYTHON -m benchmarks.real_model.trl_run CARD SEED OUT [--stop MINUTES]

PYTHON is that of an environment with TRL and torch. OUT gets checkpoints, from which the same command goes on, and
curve.json: of each step the mean reward and the seconds of its generation and of the rest, of each exam the score of
every row. `--stop` ends the run with a checkpoint after so many minutes.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]  # in the peer's environment

from benchmarks.real_model.matching import exact_match

EXAM_ROWS = 32  # answered together
SAVE_EVERY = 10  # steps

Card = dict[str, Any]
Row = dict[str, Any]


def read(path: str) -> list[Row]:
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


class Curve:
    """What is recorded of the run, as a file that a run which goes on completes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.steps: list[dict[str, float]] = []
        self.exams: dict[str, dict[str, list[float]]] = {}
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            self.steps, self.exams = known["steps"], known["exams"]

    def save(self) -> None:
        """Writes the file."""
        versions = {name: version(name) for name in ("trl", "transformers", "torch")}
        text = json.dumps({"steps": self.steps, "exams": self.exams, "versions": versions})
        self._path.write_text(text, encoding="utf-8")


class Trainer(GRPOTrainer):
    """TRL's trainer, which tells the seconds of generation and of scoring from those of the update."""

    generated = 0.0

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = super()._generate(*args, **kwargs)
        self.generated += time.perf_counter() - start
        return result


class Watch(TrainerCallback):
    """Exams, seconds of the steps, and the end of a run that has taken long enough."""

    def __init__(self, card: Card, curve: Curve, tokenizer: Any, stop: float) -> None:
        self.card, self.curve, self.tokenizer, self.stop = card, curve, tokenizer, stop
        self.trainer: Trainer | None = None
        self.rewards: list[float] = []
        self._started = self._step_started = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        del self.curve.steps[state.global_step :]
        self._started = time.perf_counter()
        if state.global_step == 0:
            self._exam(model, 0)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        assert self.trainer is not None
        self._step_started, self.trainer.generated, self.rewards = time.perf_counter(), 0.0, []

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        assert self.trainer is not None
        seconds = time.perf_counter() - self._step_started
        reward = sum(self.rewards) / len(self.rewards)
        self.curve.steps.append({"reward": reward, "seconds": seconds, "generation": self.trainer.generated})
        print(f"step {state.global_step}: reward {reward:.3f}, {seconds:.1f} s", flush=True)
        every = self.card["evaluate"].get("every", 0)
        if state.global_step == state.max_steps or (every and state.global_step % every == 0):
            self._exam(model, state.global_step)
        self.curve.save()
        if time.perf_counter() - self._started > self.stop:
            control.should_save = control.should_training_stop = True

    def _exam(self, model: Any, step: int) -> None:
        """The score of every row of the card's sets, the mean of its answers."""
        default, limit = self.card["evaluate"].get("temperature", 0.0), self.card["evaluate"]["max_tokens"]
        for exam in self.card["evaluate"]["sets"]:
            samples, temperature = exam.get("samples", 1), exam.get("temperature", default)
            rows = read(exam["path"])
            answers = self._answers(model, [row["prompt"] for row in rows], samples, temperature, limit)
            scores = [
                sum(exact_match(answer, row["answers"]) for answer in those) / samples
                for row, those in zip(rows, answers, strict=True)
            ]
            self.curve.exams.setdefault(exam["name"], {})[str(step)] = scores
            print(f"exam {exam['name']} at step {step}: {sum(scores) / len(scores):.3f}", flush=True)

    def _answers(
        self, model: Any, prompts: Sequence[str], samples: int, temperature: float, limit: int
    ) -> list[list[str]]:
        """`samples` answers to each prompt; prompts of similar lengths are answered together."""
        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        how = drawn if temperature > 0 else {"do_sample": False}
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        answers: list[list[str]] = [[] for _ in prompts]
        for start in range(0, len(order), EXAM_ROWS):
            places = order[start : start + EXAM_ROWS]
            chats = [[{"role": "user", "content": prompts[place]}] for place in places]
            encoded = self.tokenizer.apply_chat_template(
                chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
            )
            with torch.no_grad():
                ids_BT = model.generate(**encoded, **how, num_return_sequences=samples, max_new_tokens=limit)
            texts = self.tokenizer.batch_decode(ids_BT[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
            for number, place in enumerate(places):
                answers[place] = texts[number * samples : (number + 1) * samples]
        return answers


def config(card: Card, seed: int, out: str) -> GRPOConfig:
    """The card's settings under TRL's names: one update of all replies, the mean over their tokens."""
    optimizer, game = card["optimizer"], card["rlvr"]
    replies = card["train"]["batch_size"] * game["samples"]
    return GRPOConfig(
        output_dir=out,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=game["samples"],
        gradient_accumulation_steps=replies // game["samples"],
        num_generations=game["samples"],
        max_completion_length=game["sampling"]["max_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="none",
        learning_rate=optimizer["learning_rate"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=optimizer["warmup_steps"],
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=optimizer["weight_decay"],
        max_grad_norm=1.0,
        max_steps=card["train"]["steps"],
        logging_strategy="no",
        save_strategy="steps",
        save_steps=SAVE_EVERY,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=seed,
    )


def main() -> None:
    """Runs, or goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stop", type=float, default=90.0)
    arguments = parser.parse_args()
    card = tomllib.loads(arguments.card.read_text(encoding="utf-8"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(card["model"]["checkpoint"], padding_side="left", trust_remote_code=False)
    watch = Watch(card, Curve(arguments.out / "curve.json"), tokenizer, 60 * arguments.stop)

    def rewards(completions: Any, answers: Sequence[Sequence[str]], **_: Any) -> Any:
        texts = [messages[-1]["content"] for messages in completions]
        scores = [float(exact_match(text, golds)) for text, golds in zip(texts, answers, strict=True)]
        watch.rewards += scores
        return scores

    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "answers": row["answers"]}
        for row in read(card["data"]["problems"])
    ]
    trainer = Trainer(
        model=card["model"]["checkpoint"],
        reward_funcs=rewards,
        args=config(card, arguments.seed, str(arguments.out)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[watch],
    )
    watch.trainer = trainer
    trainer.train(resume_from_checkpoint=any(arguments.out.glob("checkpoint-*")) or None)


if __name__ == "__main__":
    main()
