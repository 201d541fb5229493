"""Runs on 8 fake CPU devices in a separate process (test_eight_devices.py starts it) and prints one JSON object:
the engine's completions of the same requests, with searches in between, on a mesh and on one device; the same of a
model with experts on a mesh other than the learner's; FLOPs and collectives of the compiled programs.
"""

import dataclasses
import json
import os
import re

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax
import numpy as np

from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.transformer import declare
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.types import Request
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import param_shardings
from tests.rollouts.world import CFG, ENGINE, make_params, make_rollouts, request
from tests.shapes import like

EXPERTS = like(CFG, architecture="qwen3_moe", vocab_size=264, num_experts=16, experts_per_token=3, norm_topk_prob=True)
WIDE = like(CFG, width=256, num_heads=8, num_kv_heads=4, head_dim=32, ffn_width=512)
MESHES = {"one": (1, 1, 1), "data2_fsdp2_tensor2": (2, 2, 2), "data2_tensor4": (2, 1, 4)}


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


def experts_on_another_mesh() -> dict:
    """The learner shards the weights over eight devices; the engine has four row shards and tensor groups of two."""
    params = make_params(EXPERTS)
    mesh = make_mesh(MeshConfig(1, 8, 1))
    of_learner = jax.device_put(params, param_shardings(declare(EXPERTS), mesh, TRAIN))
    facts = {}
    for name, sizes, weights in (("one", (1, 1, 1), params), ("data4_tensor2", (4, 1, 2), of_learner)):
        engine = Engine(EXPERTS, ENGINE, make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))]))
        said = make_rollouts(engine, weights).run(requests())
        gate = engine.load_params(weights)["layers"][0]["gate_XDF"]
        facts[name] = {
            "ids": [c.ids_T.tolist() for c in said],
            "logprobs": [c.logprobs_T.tolist() for c in said],
            "gate": list(gate.sharding.shard_shape(gate.shape)),
        }
    return facts


def compiled(engine: Engine, which: str) -> Any:
    """The program that computes prompts ("prefill"), or that decodes ("decode")."""
    (program,) = [one for one in engine.programs() if one.kind == which]
    return program.lower().compile()


def prompt_flops() -> dict:
    """FLOPs of the program that computes 256 tokens of prompts, on each device."""
    facts = {}
    for name, sizes in {"one": (1, 1, 1), "data8": (8, 1, 1), "data2_fsdp2_tensor2": (2, 2, 2)}.items():
        shards = sizes[0] * sizes[1]
        config = dataclasses.replace(ENGINE, prefill_tokens=256 // shards)
        mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
        facts[name] = compiled(Engine(WIDE, config, mesh), "prefill").cost_analysis()["flops"]
    return facts


def collectives() -> dict:
    """Result shapes of the collectives of every program, with a short and with a long max_length."""
    found: dict[str, list] = {}
    for length in (160, 640):
        config = dataclasses.replace(ENGINE, max_length=length)
        for cfg in (CFG, EXPERTS):
            engine = Engine(cfg, config, make_mesh(MeshConfig(2, 2, 2)))
            for which in ("prefill", "decode"):
                text = compiled(engine, which).as_text() or ""
                kinds = "all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"
                moved = re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", text)
                found.setdefault(f"{cfg.architecture} {which}", []).append(sorted(moved))
    return found


def main() -> None:
    params = make_params()
    facts = {}
    for name, sizes in MESHES.items():
        devices = jax.devices()[: int(np.prod(sizes))]
        engine = Engine(CFG, ENGINE, make_mesh(MeshConfig(*sizes), devices), Columns(ENGINE.max_length))
        rollouts = make_rollouts(engine, params)
        said = rollouts.run(requests())
        measuring = dataclasses.replace(ENGINE, entropies=True, cascade=0 if name == "one" else 2)
        paged = Engine(CFG, measuring, make_mesh(MeshConfig(*sizes), devices))
        again = make_rollouts(paged, params).run(requests())
        program = compiled(engine, "decode").as_text() or ""
        facts[name] = {
            "ids": [c.ids_T.tolist() for c in said],
            "logprobs": [c.logprobs_T.tolist() for c in said],
            "turns": [len(c.turns) for c in said],
            "paged": {
                "ids": [c.ids_T.tolist() for c in again],
                "logprobs": [c.logprobs_T.tolist() for c in again],
                "entropies": [row.entropies_T.tolist() for c in again for row in c.rows if row.entropies_T is not None],
            },
            "gathered": sorted(set(re.findall(r"= (f32\[[\d,]+\])\S* all-gather\(", program))),
        }
    others = {"experts": experts_on_another_mesh(), "flops": prompt_flops(), "collectives": collectives()}
    print(json.dumps(facts | others))


main()
