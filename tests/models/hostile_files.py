"""Small files that claim much, each in a folder that is otherwise good; test_hostile.py opens them.

As a script: opens the named cases one after the other and prints a line of JSON for each, with what was said, the CPU
time of this process and its children, and the memory that a program that opens nothing else would have needed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import shutil
import sys
from pathlib import Path

from tests.models import hostile_models, hostile_tokenizers
from tests.models.hostile_cases import BASE, CASES

__all__ = ["BASE", "CASES", "hostile_models", "hostile_tokenizers"]


def opened(door: str, folder: Path) -> None:
    from scope_jax.models.files import peft, weights
    from scope_jax.models.tokenizers.tokenizer import Tokenizer

    if door == "model":
        weights.load_hf(folder)
    elif door == "adapter":
        base = weights.checked_config(folder)
        peft.load(folder, base, peft.adapter_of(folder, base))
    elif door == "tokenizer":
        Tokenizer.load(folder)
    else:
        import jax.numpy as jnp

        from scope_jax.models.encoders.texts import TextEncoder

        TextEncoder.load(folder, max_tokens=16, rows=1, compute_dtype=jnp.float32)


def processor_time() -> float:
    """CPU seconds of this process and its children, ended or not."""
    import psutil

    own = os.times()
    live = [child.cpu_times() for child in psutil.Process().children()]
    return own.user + own.system + own.children_user + own.children_system + sum(one.user + one.system for one in live)


def main(root: Path, names: list[str]) -> None:
    from scope_jax.errors import is_users, sentence
    from scope_jax.models.tokenizers import rendering

    rendering.start()
    opened("tokenizer", BASE)  # imports are paid for
    alone = forget_peak()
    importlib.import_module("transformers.models.auto.tokenization_auto")  # and torch, which files by a class need
    for number, name in enumerate(names):
        door, change = CASES[name]
        folder = Path(shutil.copytree(BASE, root / str(number)))
        change(folder)
        before = forget_peak()
        began = processor_time()
        try:
            opened(door, folder)
            said, user = "", True
        except Exception as error:  # noqa: BLE001 - what it is, is the result
            said, user = sentence(error), is_users(error)
        line = {"case": name, "said": said, "user": user, "seconds": processor_time() - began}
        peak = max(alone + status("VmHWM") - before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
        print(json.dumps(line | {"peak": peak}), flush=True)
        shutil.rmtree(folder)


def forget_peak() -> int:
    """Begins the peak of memory anew, after what is free went back to the system; bytes that are in use now.

    What earlier files left in pieces stays in use, so the growth from here is what a file needs (proc(5), clear_refs).
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status("VmRSS")


def status(field: str) -> int:
    """Bytes of a field of memory of this process."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
