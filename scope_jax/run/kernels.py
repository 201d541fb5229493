"""A run checks the kernels it would use, before it uses them: one that does not compile, fails, or differs from XLA on
this machine is replaced by XLA's program, which is slower, and the user is told. Kernels named in the card are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import jax

from scope_jax.config import Config, ServedModel
from scope_jax.models.decoder import backends as kernels
from scope_jax.models.decoder.backends import FEW, LEARNER, PAGES, PRODUCTS, ROTATION, STATES, UNMASKED
from scope_jax.models.decoder.check import outcome
from scope_jax.models.decoder.config import Layer, ModelConfig, Parallel
from scope_jax.models.decoder.kinds import has_sinks, kept_bytes
from scope_jax.multihost import distributed
from scope_jax.run.world import Tell

Card = TypeVar("Card", bound=Config | ServedModel)


def for_sampling(cfg: Card, model: ModelConfig, tell: Tell | None) -> tuple[Card, ModelConfig]:
    """The card and the model without the kernels of engine and experts that fail here.

    All processes call it together, and replace what fails in any.
    """
    begins = [PAGES, ROTATION] if cfg.rollout.attention == "auto" else []
    begins += [STATES] if begins and kept_bytes(model, 1) else []
    begins += [PRODUCTS, FEW] if model.num_experts else []
    for kernel, reason in failures(cfg, model, begins).items():
        if kernel in (PAGES, ROTATION, STATES):
            _say(tell, kernel, reason, 'rollout.attention = "loop"')
            cfg = cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update={"attention": "loop"})})
        else:
            _say(tell, kernel, reason, "a loop over the experts' rows")
            model = replace(model, layers=tuple(map(_without_kernels, model.layers)))
    return cfg, model


def for_learning(cfg: Config, model: ModelConfig, tell: Tell | None) -> Config:
    """The card without a kernel of the learner's attention that fails here; otherwise as `for_sampling`."""
    failed = failures(cfg, model, [LEARNER, UNMASKED] if cfg.learner.attention == "auto" else [])
    for kernel, instead in ((LEARNER, "reference"), (UNMASKED, "dot_product")):
        if kernel in failed:
            _say(tell, kernel, failed[kernel], f'learner.attention = "{instead}"')
            return cfg.model_copy(update={"learner": cfg.learner.model_copy(update={"attention": instead})})
    return cfg


def failures(cfg: Config | ServedModel, model: ModelConfig, begins: Sequence[str]) -> dict[str, str]:
    """Why kernels fail, those whose checks have names that begin so: the first check of each that fails in any process.
    On CPUs, which have no kernels, none does."""
    device = jax.local_devices()[0]
    if not begins or device.platform == "cpu":
        return {}
    dtype = cfg.model.compute_dtype
    checks = [one for sizes in kernels.heads_of(model) for one in kernels.checks(device.platform, sizes, dtype)]
    narrow = cfg.rollout.kv_cache_dtype is not None
    needed = {"window": any(model.windows), "sinks": has_sinks(model), "bits": narrow}
    found: dict[str, str] = {}
    for kernel in begins:
        for check in checks:
            if kernel in found or not check.name.startswith(kernel) or not needed.get(check.name.split()[-1], True):
                continue
            result = outcome(check)
            if result.failed:
                by = f"it is {result.deviation} from {check.against}, at most {check.bound} is allowed"
                found[kernel] = f"{check.name}: {result.message or by}"
    everywhere = map(json.loads, distributed.gather(json.dumps(found).encode()))
    return {kernel: reason for one in everywhere for kernel, reason in one.items()}


def _without_kernels(layer: Layer) -> Layer:
    if layer.experts is None:
        return layer
    experts = replace(layer.experts, kernels=False)
    return replace(layer, feed=replace(layer.feed, experts=experts) if isinstance(layer.feed, Parallel) else experts)


def _say(tell: Tell | None, kernel: str, reason: str, instead: str) -> None:
    if tell is not None:
        tell(
            f"the kernel for {kernel} does not work on this machine ({reason}); {instead} takes its place, which is "
            "slower; please report it with the output of scope-jax selftest --json."
        )
