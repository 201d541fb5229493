"""The programs that are counted: of models' first layers, on hardware that need not be there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from benchmarks.programs.launches import Launches, Reader
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder.backends import attention_over_pages
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import has_sinks, head_dim
from scope_jax.models.decoder.transformer import layer_stages
from scope_jax.plan.architectures import public
from scope_jax.plan.hardware import Hardware, cuda_compiler, hardware
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.program import AbstractProgram

KEPT = Path(__file__).with_name("programs.json")
SLOTS, LENGTH, STEPS = 64, 640, 16  # of decoding: tokens of every slot at most, tokens of a dispatch
ROWS, TOKENS = 8, 1024  # of an update
CARD = LossCard(advantage="group-zscore", aggregation="token-mean", kl="none")
Work = Literal["decode", "prefill", "update"]


@dataclass(frozen=True)
class Case:
    """A program of a model on hardware."""

    model: str
    work: Work
    on: str
    """As `scope-jax plan --on` takes it; a TPU topology stands for one of its chips."""

    @property
    def name(self) -> str:
        return f"{self.work} {self.model} {self.on}"

    @property
    def compiles(self) -> bool:
        """Whether the compiler for it is installed."""
        return cuda_compiler() if self.on.endswith("H100") else find_spec("libtpu") is not None


CASES = (
    *(
        Case(model, work, "1xH100")
        for model in ("Qwen3-0.6B", "Qwen3-8B", "Qwen3.5-9B", "gpt-oss-20b")
        for work in ("decode", "prefill")
    ),
    Case("Qwen3-0.6B", "update", "1xH100"),
    Case("Qwen3-8B", "update", "8xH100"),
    *(Case("Qwen3-0.6B", "decode", on) for on in ("v5e:2x2", "v5p:2x2x1", "v6e:2x2")),
    *(Case(model, "decode", "v6e:2x2") for model in ("Qwen3.5-9B", "gpt-oss-20b")),
    Case("Qwen3-0.6B", "prefill", "v6e:2x2"),
    Case("Qwen3-0.6B", "update", "v6e:2x2"),
)


def program_of(case: Case, model: ModelConfig, on: Hardware) -> AbstractProgram:
    """The run's own program. Weights are in bfloat16 in the engine, in float32 in the learner."""
    devices = on.devices if on.platform == "gpu" else on.devices[:1]
    mesh = make_mesh(MeshConfig(1, -1, 1), devices)
    if case.work == "update":
        section = LearnerSection(buckets=(TOKENS,), micro_batch_rows=ROWS, remat="full")
        dtypes: dict[str, Any] = {"param_dtype": jnp.float32, "compute_dtype": jnp.bfloat16}
        learner = Learner(model, mesh, OptimizerSection(), section, **dtypes)
        return learner.step_program(CARD, learner.abstract_batch(TOKENS, micro_batches=1))
    how = attention_over_pages(on.platform, head_dim(model), has_sinks(model))
    engine = Engine(model, EngineConfig(SLOTS, LENGTH, STEPS, jnp.bfloat16), mesh, how)
    return next(one for one in engine.programs() if one.kind == case.work)


def counted(case: Case) -> dict[str, Any]:
    """What the program of the model's first period of layers does, and each further period adds: kernels, their kinds
    and bytes, temporaries, waits of the host, collectives with no product beside them. Of decoding in a token of every
    slot, else in one execution."""
    model, on = public(case.model), hardware(case.on)
    assert model is not None
    (_, period, _), *_ = layer_stages(model.layers)
    times = (2, 3) if case.work == "update" else (1, 2)  # a scan over one period would be unrolled
    one, two = (_compiled(case, model, len(period) * count, on) for count in times)
    layer = {name: _difference(one[name], two[name], len(period)) for name in ("kernels", "bytes")}
    return one | {"layers": len(period) * times[0], "each_layer": layer}


def _difference(one: Any, two: Any, layers: int) -> Any:
    if isinstance(one, dict):
        return {kind: round((two[kind] - one.get(kind, 0)) / layers, 2) for kind in two}
    return round((two - one) / layers)


def _compiled(case: Case, model: ModelConfig, layers: int, on: Hardware) -> dict[str, Any]:
    model = replace(model, layers=model.layers[:layers])
    with on.tracing():
        lowered = program_of(case, model, on).lower()
    program = lowered.compile()
    text, memory = program.as_text(), program.memory_analysis()
    reader = Reader(text, waits=on.platform == "gpu")
    found: Launches = reader.round() if case.work == "decode" else reader.launches()
    return {
        "kernels": {"all": found.count, **dict(sorted(found.kernels.items()))},
        "bytes": round(found.bytes),
        "temporaries": memory.temp_size_in_bytes,
        "waits": found.waits,
        "alone": dict(sorted(found.alone.items())),
    }


def kept() -> dict[str, dict[str, Any]]:
    """What is recorded for this jaxlib, by the case's name."""
    return _recorded().get(jax.lib.__version__, {})


def keep(found: Mapping[str, Any]) -> None:
    """Records cases for this jaxlib; others stay."""
    recorded = _recorded()
    recorded[jax.lib.__version__] = dict(sorted({**kept(), **found}.items()))
    KEPT.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def _recorded() -> dict[str, Any]:
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each program."""
    head = "program | layers | kernels | each layer | MB | each layer | MB of temporaries | waits | alone"
    rows = [head, "|".join(["---"] * 9)]
    for name, one in found.items():
        each = one["each_layer"]
        cells: Sequence[str] = (
            name,
            f"{one['layers']}",
            f"{one['kernels']['all']:,.0f}",
            f"{each['kernels']['all']:,.1f}",
            f"{one['bytes'] / 1e6:,.0f}",
            f"{each['bytes'] / 1e6:,.0f}",
            f"{one['temporaries'] / 1e6:,.0f}",
            f"{one['waits']:.0f}",
            ", ".join(f"{kind} {count:.0f}" for kind, count in one["alone"].items()),
        )
        rows.append(" | ".join(cells))
    return "\n".join(f"| {row} |" for row in rows)


def risen(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is more than before."""
    names = ("bytes", "temporaries", "waits")
    pairs = [(name, before[name], now[name]) for name in names]
    pairs += [("kernels", before["kernels"]["all"], now["kernels"]["all"])]
    pairs += [("alone", sum(before["alone"].values()), sum(now["alone"].values()))]
    each, other = before["each_layer"], now["each_layer"]
    pairs += [("kernels of a layer", each["kernels"]["all"], other["kernels"]["all"])]
    pairs += [("bytes of a layer", each["bytes"], other["bytes"])]
    return [f"{name}: {count:,} instead of {was:,}" for name, was, count in pairs if count > was]
