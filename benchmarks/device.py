"""What one accelerator does: our checks, decoding and updates of real model shapes, beside torch on the same device.

    python -m benchmarks.device --out FOLDER [--stages TEXT …] [--torch PYTHON]       (under ten minutes on one H100)

Each stage is a process of its own with a time limit, so that one that fails costs only its own figures; its last line
is JSON. Weights are random; Qwen3-8B/8 is the model's first 8 layers. In order:

    rates                 a large bfloat16 product, large vectors, a tiny operation
    selftest              scope-jax selftest
    decode MODEL N        the paged engine, N slots of 640 tokens in the mean: milliseconds for a token of every slot
    torch decode MODEL N  transformers' generate from N prompts of 512 tokens, 256 more each, with its dynamic cache
    update MODEL N        one step over N rows of 1,024 tokens: float32 weights and moments, layers recomputed, AdamW
    torch update MODEL N  the same of transformers' model under autocast, with scaled_dot_product_attention
    demo                  scope-jax demo: a whole game, held-out accuracy before and after

Ours are benchmarks/calibration/device.py. Writes device.json and device.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROMPT, ANSWER = 512, 256  # tokens that torch decodes
LENGTH = 1024  # tokens of a row of an update
STAGES = {  # seconds that each may take
    "rates": 60,
    "selftest": 240,
    "decode Qwen3-0.6B 64": 90,
    "torch decode Qwen3-0.6B 64": 90,
    "decode Qwen3-8B 64": 90,
    "torch decode Qwen3-8B 64": 90,
    "decode Qwen3-8B 256": 90,
    "update Qwen3-0.6B 8": 90,
    "torch update Qwen3-0.6B 8": 90,
    "update Qwen3-8B/8 4": 90,
    "torch update Qwen3-8B/8 4": 90,
    "demo": 240,
}


def median_seconds(run: Callable[[], Any], times: int) -> float:
    """Of `run`, which waits for the device, after one run that does not count."""
    run()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def torch_model(name: str, dtype: Any) -> Any:
    """transformers' model with random weights on the GPU."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from scope_jax.plan.architectures import SHAPES

    name, _, layers = name.partition("/")
    shape = SHAPES[name] | ({"num_hidden_layers": int(layers)} if layers else {})
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **shape), dtype=dtype)


def torch_decode(name: str, slots: int) -> dict[str, Any]:
    """Milliseconds for a token of every row: the difference of whole and one token, over the tokens between."""
    import torch

    model = torch_model(name, torch.bfloat16).eval()
    ids = torch.randint(0, model.config.vocab_size, (slots, PROMPT), device="cuda")

    def run(tokens: int) -> None:
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True, "top_k": 0, "pad_token_id": 0}
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        torch.cuda.synchronize()

    seconds = median_seconds(lambda: run(ANSWER), 2) - median_seconds(lambda: run(1), 3)
    return {"milliseconds": 1e3 * seconds / (ANSWER - 1), "torch": torch.__version__}


def torch_update(name: str, rows: int) -> dict[str, Any]:
    """Seconds of one step."""
    import torch

    policy = torch_model(name, torch.float32)
    policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy.train()
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-6, fused=True)
    ids = torch.randint(0, policy.config.vocab_size, (rows, LENGTH), device="cuda")
    advantage_B1 = torch.randn(rows, 1, device="cuda")

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = policy(ids, use_cache=False).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        ratio = torch.exp(nll.detach() - nll).view(rows, -1)
        torch.maximum(-advantage_B1 * ratio, -advantage_B1 * ratio.clamp(0.8, 1.2)).mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    seconds, memory = median_seconds(run, 5), torch.cuda.max_memory_allocated() / 2**30
    return {"seconds": seconds, "peak_gib": memory, "torch": torch.__version__}


def command(name: str, folder: Path, torch: str) -> list[str]:
    """What runs a stage."""
    ours = [sys.executable, str(ROOT / "benchmarks" / "calibration" / "device.py")]
    match name.split():
        case ["selftest"]:
            return [sys.executable, "-m", "scope_jax", "selftest", "--json"]
        case ["demo"]:
            return [sys.executable, "-m", "scope_jax", "demo", "--run", str(folder / "demo")]
        case ["decode", model, slots]:
            return [*ours, "decode", "--model", model, "--slots", slots, "--length", str(PROMPT + ANSWER // 2)]
        case ["update", model, rows]:
            name, _, layers = model.partition("/")
            sizes = ["--rows", rows, "--length", str(LENGTH), *(["--layers", layers] if layers else [])]
            return [*ours, "update", "--model", name, *sizes]
        case ["torch", *words]:
            return [torch, "-m", "benchmarks.device", "--stage", *words]
        case _:
            return [*ours, name]


def outcome(name: str, folder: Path, torch: str) -> dict[str, Any]:
    """A stage's JSON (of `demo` its text), its seconds, and its error if it failed."""
    began, log = time.monotonic(), folder / f"{name.replace(' ', '-').replace('/', '-')}.log"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        with log.open("w") as errors:
            done = subprocess.run(
                command(name, folder, torch),
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=STAGES[name],
            )
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {STAGES[name]} s"}
    found: dict[str, Any] = {"wall_seconds": round(time.monotonic() - began, 1)}
    lines = done.stdout.strip().splitlines()
    if lines and lines[-1].startswith("{"):
        return found | json.loads(lines[-1])
    if done.returncode:
        return found | {"error": " ".join(log.read_text().split())[-500:]}
    return found | {"text": lines[-1] if lines else ""}


def cell(one: dict[str, Any]) -> str:
    """A stage's figure."""
    if not one:
        return ""
    if "error" in one:
        return str(one["error"])[:60]
    if "checks" in one:
        ran = [check["status"] for check in one["checks"] if check["status"] != "skipped"]
        return f"{ran.count('ok')} of {len(ran)} checks pass"
    if "milliseconds" in one:
        return f"{one['milliseconds']:.2f} ms"
    if "seconds" in one:
        return f"{one['seconds']:.3f} s, {one['peak_gib']:.1f} GiB"
    if "flops_8192" in one:
        return (
            f"{one['flops_8192'] / 1e12:.0f} TFLOP/s, {one['bytes'] / 1e9:,.0f} GB/s, {one['device']}, JAX {one['jax']}"
        )
    return str(one.get("text", ""))[:100]


def table(found: dict[str, dict[str, Any]]) -> str:
    """Each stage and torch's beside it."""
    lines = ["| stage | ours | torch |", "|---|---|---|"]
    names = [name for name in STAGES if name in found and not name.startswith("torch ")]
    return "\n".join(
        [*lines, *(f"| {name} | {cell(found[name])} | {cell(found.get(f'torch {name}', {}))} |" for name in names)]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of device.json, device.md and the stages' logs")
    parser.add_argument("--stages", nargs="+", default=[""], metavar="TEXT", help="those with one of these texts only")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="an interpreter with torch")
    parser.add_argument("--stage", nargs="+", help=argparse.SUPPRESS)  # of torch, in its own process
    given = parser.parse_args()
    if given.stage:
        what, model, number = given.stage
        print(json.dumps((torch_update if what == "update" else torch_decode)(model, int(number))))
        return 0
    if given.out is None:
        parser.error("give --out FOLDER")
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    for name in STAGES:
        if any(text in name for text in given.stages):
            found[name] = outcome(name, given.out, given.torch)
            print(f"{name}: {cell(found[name])}", flush=True)
            (given.out / "device.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "device.md").write_text(table(found) + "\n")
    return int(any("error" in one for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
