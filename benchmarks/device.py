"""What one accelerator does: our checks, decoding and updates of real model shapes, beside torch on the same device.

    python -m benchmarks.device --out FOLDER [--stages TEXT …] [--torch PYTHON]

Each stage is a process of its own with a time limit, so that one that fails costs only its own figures; its last line
is JSON. Weights are random; Qwen3-8B/8 is the model's first 8 layers. In order:

    rates                 a large bfloat16 product, memory that is read, and read and written, a tiny operation
    selftest              scope-jax selftest, in several processes at a time, as it mostly compiles
    decode MODEL N        the engine, N slots of 640 tokens in the mean: milliseconds for a token of every slot
    torch decode MODEL N  transformers' generate from N prompts of 512 tokens, 256 more each, with its dynamic cache
    sample MODEL N        the same as a run has it, the host's part included: models of other layers, or with experts
    update MODEL N        one step over N rows of 1,024 tokens: float32 weights and moments, layers recomputed, AdamW
    torch update MODEL N  the same of transformers' model under autocast, with scaled_dot_product_attention
    shared MODEL N        one step over 8 answers of 128 tokens to a prompt of N, which is computed once
    torch shared MODEL N  the same of transformers' model, which computes it 8 times
    demo                  scope-jax demo: a whole game, held-out accuracy before and after

Ours are benchmarks/calibration/device.py. Writes device.json and device.md, with MFU and HFU of updates
(models/decoder/flops.py).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROMPT, ANSWER = 512, 256  # tokens that torch decodes
LENGTH = 1024  # tokens of a row of an update
ANSWERS, SHORT = 8, 128  # answers to a prompt that they share, and their tokens
CHECKS = ("attention", "dense", "windows", "experts", "sinks", "states")  # of the self-test, a process each
STAGES = {  # seconds that each may take
    "rates": 60,
    "selftest": 240,
    "decode Qwen3-0.6B 64": 90,
    "torch decode Qwen3-0.6B 64": 90,
    "decode Qwen3-8B 64": 90,
    "torch decode Qwen3-8B 64": 90,
    "decode Qwen3-8B 256": 90,
    "sample Qwen3.5-9B 64": 120,
    "sample gemma-4-12B-it 64": 120,
    "sample gpt-oss-20b 64": 120,
    "sample Qwen3-30B-A3B-Instruct-2507 64": 150,
    "update Qwen3-0.6B 8": 90,
    "torch update Qwen3-0.6B 8": 90,
    "update Qwen3-8B/8 4": 90,
    "torch update Qwen3-8B/8 4": 90,
    "shared Qwen3-0.6B 2048": 90,
    "torch shared Qwen3-0.6B 2048": 90,
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


def torch_update(name: str, rows: int, prompt: int = 0, length: int = LENGTH) -> dict[str, Any]:
    """Seconds of one step over all tokens but the first, or over those after a prompt, the same in all rows."""
    import torch

    policy = torch_model(name, torch.float32)
    policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy.train()
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-6, fused=True)
    ids = torch.randint(0, policy.config.vocab_size, (rows, length), device="cuda")
    ids[:, :prompt] = ids[:1, :prompt]
    answer = length - max(prompt, 1)
    advantage_B1 = torch.randn(rows, 1, device="cuda")

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = policy(ids, use_cache=False, logits_to_keep=answer + 1).logits[:, :-1]
        targets = ids[:, -answer:].flatten()
        nll = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
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
        case ["selftest", *only]:
            return [sys.executable, "-m", "scope_jax", "selftest", "--json", *(f"--only={part}" for part in only)]
        case ["demo"]:
            return [sys.executable, "-m", "scope_jax", "demo", "--run", str(folder / "demo")]
        case ["decode" | "sample" as what, model, slots]:
            return [*ours, what, "--model", model, "--slots", slots, "--length", str(PROMPT + ANSWER // 2)]
        case ["update", model, rows]:
            name, _, layers = model.partition("/")
            sizes = ["--rows", rows, "--length", str(LENGTH), *(["--layers", layers] if layers else [])]
            return [*ours, "update", "--model", name, *sizes]
        case ["shared", model, prompt]:
            length = str(int(prompt) + SHORT)
            return [*ours, "update", "--model", model, "--prompt", prompt, "--length", length, "--rows", str(ANSWERS)]
        case ["torch", *words]:
            return [torch, "-m", "benchmarks.device", "--stage", *words]
        case _:
            return [*ours, name]


def outcome(name: str, folder: Path, torch: str) -> dict[str, Any]:
    """A stage's JSON (of `demo` its text), its seconds, and its error if it failed; of the self-test that of all its
    processes."""
    began, names = time.monotonic(), [f"selftest {part}" for part in CHECKS] if name == "selftest" else [name]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONFAULTHANDLER": "1",  # where a process is that takes too long
        **({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if len(names) > 1 else {}),
    }
    processes = []
    for one in names:
        log = folder / f"{one.replace(' ', '-').replace('/', '-')}.log"
        with log.open("w") as errors:
            options: dict[str, Any] = {"cwd": ROOT, "env": environment, "stderr": errors, "text": True}
            words = command(one, folder, torch)
            process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True, **options)
        processes.append((process, log))
    ended = [result(process, log, began, STAGES[name]) for process, log in processes]
    checks = [check for one in ended for check in one.pop("checks", [])]
    found: dict[str, Any] = {"checks": checks} if checks else {}
    for one in ended:
        found |= one
    return {"wall_seconds": round(time.monotonic() - began, 1)} | found


def result(process: subprocess.Popen[str], log: Path, began: float, limit: int) -> dict[str, Any]:
    """The JSON or text of a process's last line, or why there is none; it is ended so many seconds after `began`."""
    try:
        text, _ = process.communicate(timeout=max(1, limit - (time.monotonic() - began)))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        process.communicate()
        return {"error": f"not done within {limit} s"}
    last = (text.strip().splitlines() or [""])[-1]
    if last.startswith("{"):
        return json.loads(last)
    return {"error": " ".join(log.read_text().split())[-500:]} if process.returncode else {"text": last}


def update_flops(one: dict[str, Any]) -> tuple[float, float]:
    """(needed, executed) FLOPs of an update of ours, by what its line says: of a prompt that rows share, once."""
    from scope_jax.models.decoder import flops  # imports JAX, which an interpreter for torch need not have
    from scope_jax.plan.architectures import public

    model = public(one["model"])
    assert model is not None
    model = replace(model, layers=model.layers[: one.get("layers") or model.num_layers])
    length, prompt, rows, frozen = one["length"], one.get("prompt", 0), one["rows"], one["rank"] > 0

    def shared(of_row: Callable[[int, int], float]) -> float:
        return rows * of_row(length, length - max(prompt, 1)) - (rows - 1) * of_row(prompt, 0)

    needed = shared(lambda length, trained: flops.update_flops(model, 1, length, trained, frozen))
    executed = shared(
        lambda length, trained: flops.executed_flops(model, length, trained, one["remat"], frozen=frozen).total
    )
    return needed, executed


def utilisation(ours: dict[str, Any], one: dict[str, Any]) -> str:
    """MFU and HFU of an update of ours; of torch's, in place of it, the MFU: what it executes is not known."""
    from scope_jax.sharding.chips import chip_of

    chip = chip_of(ours.get("device", ""))
    if "seconds" not in one or "seconds" not in ours or chip is None or chip.peak is None:
        return ""
    needed, executed = (work / one["seconds"] / chip.peak for work in update_flops(ours))
    return f", MFU {needed:.0%}" + (f", HFU {executed:.0%}" if one is ours else "")


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
        both = f"{one['bytes'] / 1e9:,.0f} GB/s read and written"
        read = f"{one['bytes_read'] / 1e9:,.0f} GB/s read, " if "bytes_read" in one else ""
        return f"{one['flops_8192'] / 1e12:.0f} TFLOP/s, {read}{both}, {one['device']}, JAX {one['jax']}"
    return str(one.get("text", ""))[:100]


def table(found: dict[str, dict[str, Any]]) -> str:
    """Each stage and torch's beside it."""
    lines = ["| stage | ours | torch |", "|---|---|---|"]
    for name, ours in found.items():
        if not name.startswith("torch "):
            both = (ours, found.get(f"torch {name}", {}))
            lines.append("| " + " | ".join([name, *(cell(one) + utilisation(ours, one) for one in both)]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of device.json, device.md and the stages' logs")
    parser.add_argument("--stages", nargs="+", default=[""], metavar="TEXT", help="those with one of these texts only")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="an interpreter with torch")
    parser.add_argument("--stage", nargs="+", help=argparse.SUPPRESS)  # of torch, in its own process
    given = parser.parse_args()
    if given.stage:
        what, model, number = given.stage[0], given.stage[1], int(given.stage[2])
        stages = {
            "decode": lambda: torch_decode(model, number),
            "update": lambda: torch_update(model, number),
            "shared": lambda: torch_update(model, ANSWERS, number, number + SHORT),
        }
        print(json.dumps(stages[what]()))
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
