"""What each card needs on its hardware, by `scope-jax plan`; `benchmarks.plan_tables` makes a table of it.

    python benchmarks/plans.py [--only configs/ssp/qwen2.5-7b.toml] [--on v5p:2x2x2] [--estimates]

Without options, every card in PLANS is planned on the hardware listed there, or with --on on that: compiled, which
takes minutes each, or GPUs without jax[cuda12] or jax[cuda13] by arithmetic, which takes seconds. Results are kept in
benchmarks/baselines/plans.json; those of other hardware stay as they are. With --estimates only the times of the kept
results are computed again, by arithmetic: after other assumptions. Nothing is executed on any device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.plan.hardware import ABSENT

os.environ |= ABSENT

from scope_jax.plan.command import plan
from scope_jax.plan.hardware import hardware

WIKIPEDIA = "21015324x768"  # passages of the 2018 Wikipedia as split by DPR, embedded by E5-base
# Cards with the hardware that their headers name, and the vectors of an index in the same process.
PLANS: tuple[tuple[str, str, str | None], ...] = (
    ("configs/scope/qwen3-8b.toml", "8xH100", None),
    ("configs/scope/qwen2.5-7b.toml", "8xH100", None),
    ("configs/scope/olmo3-7b.toml", "8xH200", None),
    ("configs/scope/adapters/qwen3-8b-one-gpu.toml", "1xH100", None),
    ("configs/scope/adapters/qwen3-8b-v5e.toml", "v5e:2x4", None),
    ("configs/ssp/qwen2.5-7b.toml", "8xH100", WIKIPEDIA),
    ("configs/score/qwen2.5-7b.toml", "4xH100", None),
    ("configs/score/llama3.1-8b.toml", "4xH100", None),
    ("configs/spice/octothinker-3b.toml", "8xH200", None),
    ("configs/spice/octothinker-8b.toml", "8xH200", None),
    ("configs/spice/qwen3-4b.toml", "8xH200", None),
    ("configs/spice/qwen3-8b.toml", "8xH200", None),
    ("configs/spell/qwen2.5-7b.toml", "8xH100", None),
    ("configs/spell/qwen2.5-7b-instruct.toml", "8xH100", None),
    ("configs/spell/llama3.1-8b-instruct.toml", "8xH100", None),
    ("configs/spell/r1-distill-llama-8b.toml", "8xH100", None),
    ("configs/spell/qwen3-4b-thinking.toml", "8xH100", None),
    ("configs/spell/qwen2.5-14b.toml", "8xH100", None),
    ("configs/spell/qwen2.5-14b-instruct.toml", "8xH100", None),
    ("configs/spell/r1-distill-qwen-14b.toml", "8xH100", None),
    ("configs/spell/qwen2.5-32b.toml", "8xH200", None),
    ("configs/spell/qwen2.5-32b-instruct.toml", "8xH200", None),
    ("configs/spell/qwen3-30b-a3b-instruct.toml", "8xH200", None),
    ("configs/spell/qwen3-30b-a3b-thinking.toml", "8xH200", None),
    ("configs/r_zero/qwen3-4b.toml", "8xH100", None),
    ("configs/r_zero/qwen3-8b.toml", "8xH100", None),
    ("configs/r_zero/octothinker-3b.toml", "8xH100", None),
    ("configs/r_zero/octothinker-8b.toml", "8xH100", None),
    ("configs/dr_zero/qwen2.5-3b.toml", "8xH100", WIKIPEDIA),
    ("configs/dr_zero/qwen2.5-7b.toml", "8xH100", WIKIPEDIA),
    ("configs/absolute_zero/qwen2.5-3b-coder.toml", "2xH100", None),
    ("configs/absolute_zero/qwen2.5-7b.toml", "4xH100", None),
    ("configs/absolute_zero/qwen2.5-7b-coder.toml", "4xH100", None),
    ("configs/absolute_zero/qwen2.5-14b.toml", "8xH100", None),
    ("configs/absolute_zero/qwen2.5-14b-coder.toml", "8xH100", None),
    ("configs/absolute_zero/llama3.1-8b.toml", "4xH100", None),
    ("configs/spiral/qwen3-4b.toml", "8xH100", None),
    ("configs/spiral/r1-distill-qwen-7b.toml", "8xH100", None),
)
# Models that have no card, in that of a game with one policy.
MODELS = tuple(
    (f"configs/spiral/qwen3-4b.toml --set model.checkpoint={model}", on, None)
    for model, places in {
        "Qwen3.5-9B": ("v5p:2x2x2", "v6e:4x8", "8xH100"),
        "Qwen3.5-27B": ("v5p:2x2x4", "2x8xH100"),
        "Qwen3.5-27B --set mesh.tensor=2": ("v6e:8x8",),
        "Qwen3.5-27B --set model.adapter.rank=32": ("8xH100",),
        "Qwen3.5-35B-A3B": ("v5p:2x2x4", "v6e:8x8", "2x8xH100"),
        "Qwen3.5-35B-A3B --set model.adapter.rank=32": ("8xH100",),
        "gemma-4-12B-it": ("v5p:2x2x2", "v6e:4x8", "8xH100"),
        "gpt-oss-20b": ("v5p:2x2x2", "v6e:4x8", "8xH100"),
    }.items()
    for on in places
)
TIMES = ("seconds", "mfu", "hfu", "assumed", "decode", "engine_meshes")
ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "baselines" / "plans.json"


def write(plans: dict[str, Any]) -> None:
    """Keeps the results."""
    KEPT.write_text(json.dumps(plans, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", action="append", help="a card of the list; repeatable")
    options.add_argument("--estimates", action="store_true", help="compute the times of kept results again, no memory")
    options.add_argument("--on", help="other hardware than the list's, for example v5p:2x2x2")
    given = options.parse_args()
    plans: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for card, named, index in (*PLANS, *MODELS):
        if given.only and card not in given.only:
            continue
        path, *changes = card.split(" --set ")
        on = hardware(given.on or named, compiled=not given.estimates)
        found = plan(ROOT / path, changes, on, index=index, tell=lambda line: print(line, file=sys.stderr, flush=True))
        if given.estimates:
            kept = plans[f"{card} {on.name}"]
            moved = kept["decode"]["collectives"]
            found = kept | {name: found[name] for name in TIMES}
            found["decode"] = found["decode"] | {"collectives": moved}
        found["card"] = card
        plans[f"{card} {on.name}"] = found
        write(plans)
        print(json.dumps({"card": card, "on": on.name, "fits": found["fits"], "peak_gib": found["peak_gib"],
                          "setting": found.get("setting")}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
