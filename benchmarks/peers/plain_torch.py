"""transformers' `generate` and the same GRPO step written in torch, on all cores."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, CompileConfig

from benchmarks.peers import cases
from benchmarks.peers.worker import Work, cores


def compile_on_cpu() -> CompileConfig:
    """torch.compile's defaults for CPUs; `generate` compiles there only if this flag of its tests is set."""
    config = CompileConfig(fullgraph=False, mode="default")
    config._compile_all_devices = True  # pyright: ignore[reportAttributeAccessIssue]  # declared as None
    return config


# With a static cache `generate` compiles the decoding step, if it compiles at all.
VARIANTS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "compiled": {"cache_implementation": "static", "compile_config": compile_on_cpu()},
}


def sample(model: Any, prompts_PT: np.ndarray, length: int, settings: dict[str, Any]) -> Any:
    """Ids [P, 64 + length] after sampling exactly `length` tokens at temperature 1."""
    ids = torch.from_numpy(prompts_PT)
    with torch.no_grad():
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=length,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            **settings,
        )


def generate(case: str, model: Any, variant: str) -> Work:
    """A generation case: batches of `rows` in the given order, each until its longest completion ends."""
    plan = cases.generation(case)
    model.eval()

    def run() -> int:
        for prompts_PT, longest in plan.batches():
            ids = sample(model, prompts_PT, longest, VARIANTS[variant])
            if ids.shape[1] != cases.PROMPT + longest:
                raise RuntimeError("generate did not sample as many tokens as were asked for.")
        return plan.tokens

    return run


def answer_logprobs(model: Any, ids_BT: Any, prompt: int = cases.PROMPT) -> Any:
    """Log-probs of the tokens after the prompt, [B, 128] after one of 64; logits of their positions only."""
    count = ids_BT.shape[1] - prompt
    logits = model(ids_BT, use_cache=False, logits_to_keep=count + 1).logits[:, :-1]
    targets = ids_BT[:, prompt:]
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return -nll.view(targets.shape)


class Trainer:
    """A policy with AdamW, and its reference."""

    def __init__(self, policy: Any, reference: Any) -> None:
        self.policy, self.reference = policy, reference
        self._optimizer = torch.optim.AdamW(
            policy.parameters(), cases.LEARNING_RATE, weight_decay=cases.WEIGHT_DECAY, fused=True
        )

    def update(self, ids_BT: Any, advantage_B1: Any, old: bool, prompt: int = cases.PROMPT) -> int:
        """One GRPO step. prompt: tokens before the answers; old: score the old log-probs instead of taking those of
        the step itself."""
        with torch.no_grad():
            ref = answer_logprobs(self.reference, ids_BT, prompt)
            before = answer_logprobs(self.policy, ids_BT, prompt) if old else None
        logp = answer_logprobs(self.policy, ids_BT, prompt)
        ratio = torch.exp(logp - (logp.detach() if before is None else before))
        clipped = torch.clamp(ratio, 1 - cases.CLIP_LOW, 1 + cases.CLIP_HIGH)
        policy = torch.maximum(-advantage_B1 * ratio, -advantage_B1 * clipped)
        kl = ratio * (torch.exp(ref - logp) - 1 + logp - ref)
        loss = (policy + cases.KL_COEF * kl).mean(1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), cases.MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return logp.numel()


def group_advantages(ids_BT: Any, samples: int) -> Any:
    """[B, 1]: rewards of the completions less their group's mean."""
    answers = ids_BT[:, cases.PROMPT :].tolist()
    rewards = torch.tensor([cases.reward(ids) for ids in answers]).view(-1, samples)
    return (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)


class Participant:
    """See benchmarks.peers.worker."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(cores())
        torch.manual_seed(0)
        self._folder = folder

    def _model(self, case: str = "update") -> Any:
        # with scaled_dot_product_attention
        folder = os.path.join(self._folder, cases.shape(case)[0])
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("torch", "transformers")}

    def logprob(self) -> float:
        with torch.no_grad():
            return float(answer_logprobs(self._model(), torch.from_numpy(cases.rows()[0]).long()).mean())

    def prepare(self, case: str, variant: str) -> Work:
        if case in cases.GENERATION:
            return generate(case, self._model(), variant)
        trainer = Trainer(self._model(case), self._model(case))
        if case == "step":
            plan = cases.generation("step")
            ((prompts_PT, length),) = plan.batches()

            def step() -> int:
                trainer.policy.eval()
                ids = sample(trainer.policy, prompts_PT, length, VARIANTS["dynamic"])
                trainer.policy.train()
                return trainer.update(ids, group_advantages(ids, plan.samples), old=False)

            return step
        ids_BT, advantages_B = cases.rows(case)
        ids, advantage = torch.from_numpy(ids_BT).long(), torch.tensor(advantages_B, dtype=torch.float32)[:, None]
        return lambda: trainer.update(ids, advantage, old=case == "update_old", prompt=cases.lengths(case)[0])
