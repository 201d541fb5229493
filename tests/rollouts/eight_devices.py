"""Facts for test_eight_devices.py, on 8 fake CPU devices: the engine's completions of the same requests, with searches
in between, on a mesh and on one device; the same of a model with experts on a mesh other than the learner's; FLOPs and
collectives of the compiled programs.
"""

import dataclasses
import os
import re

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.transformer import declare
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.types import Request
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import param_shardings
from tests.rollouts.scripted_drafts import Scripted
from tests.rollouts.world import CFG, ENGINE, bits, make_params, make_rollouts, request
from tests.shapes import like

EXPERTS = like(CFG, architecture="qwen3_moe", vocab_size=264, num_experts=16, experts_per_token=3, norm_topk_prob=True)
WIDE = like(CFG, width=256, num_heads=8, num_kv_heads=4, head_dim=32, ffn_width=512)
MESHES = {
    "one": (1, 1, 1),
    "data8": (8, 1, 1),
    "data2_fsdp2_tensor2": (2, 2, 2),
    "data2_tensor4": (2, 1, 4),
    "data4_tensor2": (4, 1, 2),
}


def requests() -> list[Request]:
    def respond(turns):
        return f" seen {len(turns)} " if len(turns) < 3 else None

    greedy = [
        request(f"prompt {i}" * (1 + i % 3), key=i, group=f"{i % 5}", temperature=0.0, max_tokens=25, stop_ids=())
        for i in range(5)
    ]
    talk = [
        request(f"talk {i}", key=i, temperature=0.0, max_tokens=9, stop_ids=tuple(range(0, 256, 17)), max_turns=3)
        for i in range(7)
    ]
    long = [
        request("more than a page " * 5, key=20 + i, group="long", temperature=0.0, max_tokens=9 + i, stop_ids=())
        for i in range(3)
    ]
    return [*greedy, *greedy[:2], *long, *(dataclasses.replace(one, respond=respond) for one in talk)]


def compiled(engine: Engine, which: str) -> Any:
    """The program that computes prompts ("prefill"), or that decodes ("decode")."""
    (program,) = [one for one in engine.programs() if one.kind == which]
    return program.lower().compile()


def mesh_of(name: str) -> Mesh:
    sizes = MESHES[name]
    return make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])


def said(engine: Engine, params: Any) -> dict[str, Any]:
    completions = make_rollouts(engine, params).run(requests())
    return {
        "ids": [c.ids_T.tolist() for c in completions],
        "logprobs": [c.logprobs_T.tolist() for c in completions],
        "turns": [len(c.turns) for c in completions],
        "entropies": [row.entropies_T.tolist() for c in completions for row in c.rows if row.entropies_T is not None],
    }


def columns(mesh: str) -> dict[str, Any]:
    """Completions of an engine with a page for each slot."""
    return said(Engine(CFG, ENGINE, mesh_of(mesh), Columns(ENGINE.max_length)), make_params())


def pages(mesh: str) -> dict[str, Any]:
    """Completions of an engine with shared pages, and the shapes of what its decode program gathers."""
    measuring = dataclasses.replace(ENGINE, entropies=True, cascade=0 if mesh == "one" else 2)
    engine = Engine(CFG, measuring, mesh_of(mesh))
    program = compiled(engine, "decode").as_text() or ""
    gathered = sorted(set(re.findall(r"= (f32\[[\d,]+\])\S* all-gather\(", program)))
    return said(engine, make_params()) | {"gathered": gathered}


def experts(mesh: str) -> dict[str, Any]:
    """The learner shards the weights over eight devices; the engine has four row shards and tensor groups of two."""
    weights = make_params(EXPERTS)
    if mesh != "one":
        of_learner = make_mesh(MeshConfig(1, 8, 1))
        weights = jax.device_put(weights, param_shardings(declare(EXPERTS), of_learner, TRAIN))
    engine = Engine(EXPERTS, ENGINE, mesh_of(mesh))
    gate = engine.load_params(weights)["layers"][0]["gate_XDF"]
    return said(engine, weights) | {"gate": list(gate.sharding.shard_shape(gate.shape))}


def drafts(mesh: str) -> dict[str, Any]:
    """Of a model with experts, completions with drafts that are right but for every fifth token, and with none; and how
    many tokens were accepted."""
    config = dataclasses.replace(ENGINE, draft_tokens=3)
    rollouts = make_rollouts(Engine(EXPERTS, config, mesh_of(mesh)), make_params(EXPERTS))
    asked = [*requests()[::2], request("alone", key=99, temperature=0.0, max_tokens=60, stop_ids=())]
    rollouts.drafter = None
    first = rollouts.run(asked)
    rollouts.clear()
    rollouts.drafter = Scripted(
        asked, first, lambda ids, length: [1 if (length + n) % 5 == 0 else id for n, id in enumerate(ids)]
    )
    second = rollouts.run(asked)
    return {
        "ids": [c.ids_T.tolist() for c in first],
        "same": [bits(c) for c in first] == [bits(c) for c in second],
        "accepted": rollouts.drafter.counts.accepted,
        "rejected": rollouts.drafter.counts.drafted - rollouts.drafter.counts.accepted,
    }


def prompt_flops(mesh: str) -> float:
    """FLOPs of the program that computes 256 tokens of prompts, on each device."""
    shards = MESHES[mesh][0] * MESHES[mesh][1]
    config = dataclasses.replace(ENGINE, prefill_tokens=256 // shards)
    return compiled(Engine(WIDE, config, mesh_of(mesh)), "prefill").cost_analysis()["flops"]


def collectives(model: str, which: str) -> list[list[str]]:
    """Result shapes of the collectives of a program, with a short and with a long max_length."""
    found, kinds = [], "all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"
    for length in (160, 640):
        config = dataclasses.replace(ENGINE, max_length=length)
        engine = Engine({"plain": CFG, "experts": EXPERTS}[model], config, mesh_of("data2_fsdp2_tensor2"))
        text = compiled(engine, which).as_text() or ""
        found.append(sorted(re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", text)))
    return found


FACTS = {
    "columns": columns,
    "pages": pages,
    "experts": experts,
    "drafts": drafts,
    "flops": prompt_flops,
    "collectives": collectives,
}


def main(name: str, *words: str) -> Any:
    """The facts of this name, of a mesh or a program."""
    return FACTS[name](*words)
