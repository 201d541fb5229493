"""tunix#2290 on Tunix: which prompts a resumed GRPOLearner reads, `PYTHON -m benchmarks.curves.resume_tunix`.

A run of four steps, and one of two that a new learner resumes from the checkpoint, with one and with two iterations per
batch. Prints, for each, the steps of the file that were read, and whether the weights end as the same bits.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from tunix.rl.grpo.grpo_learner import GRPOLearner  # pyright: ignore[reportMissingImports]  # in the peer's environment

from benchmarks.curves import task, tunix_run

STEPS, STOP = 4, 2


def train(checkpoints: str, iterations: int, last: int) -> tuple[list[int], str]:
    """(steps of the file whose prompts were answered, digest of the weights) of a learner on the first `last` steps,
    with a checkpoint after each optimiser step, from which it resumes if there is one."""
    record, answered = task.Record(), []
    parts = tunix_run.cluster(
        task.FOLDER / "base",
        seed=0,
        steps=1000,
        checkpoint_root_directory=checkpoints,
        checkpointing_options=ocp.CheckpointManagerOptions(save_interval_steps=1, enable_async_checkpointing=False),
    )

    def rewards(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        place = next(row["place"] for row in record.trained if row["question"] == prompts[0])
        answered.append((place - record.trained[0]["place"]) // task.PROMPTS)
        return record.rewards(prompts, completions)

    def data() -> Iterator[dict[str, np.ndarray]]:
        for step in range(last):
            rows = record.trained[step * task.PROMPTS : (step + 1) * task.PROMPTS]
            yield {"prompts": np.array([row["question"] for row in rows])}

    GRPOLearner(parts, tunix_run.settings(num_iterations=iterations), rewards).train(data())
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(nnx.state(parts.actor_trainer.model)):
        digest.update(np.asarray(leaf).tobytes())
    return answered, digest.hexdigest()[:16]


def main() -> None:
    for iterations in (1, 2):
        with tempfile.TemporaryDirectory() as temporary:
            whole, weights = train(str(Path(temporary) / "whole"), iterations, STEPS)
            before, _ = train(str(Path(temporary) / "parts"), iterations, STOP)
            after, resumed = train(str(Path(temporary) / "parts"), iterations, STEPS)
        found = {"uninterrupted": whole, "before": before, "after": after, "same_bits": weights == resumed}
        print(json.dumps({"google-tunix": version("google-tunix"), "iterations": iterations} | found), flush=True)


if __name__ == "__main__":
    main()
