"""Writes benchmarks/baselines/calibration.json: what plan's estimator predicts of published measurements, and the
largest models that engines hold. `benchmarks.plan_tables` makes a page of it.

    python -m benchmarks.calibration

Takes seconds: nothing is compiled or executed.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from scope_jax.plan.hardware import ABSENT, GIB, hardware

if __name__ == "__main__":
    os.environ |= ABSENT

from benchmarks.calibration.largest import largest
from benchmarks.calibration.rows import Row, error, least, predicted, rows

FILE = Path(__file__).resolve().parents[1] / "baselines" / "calibration.json"
HOSTS = ("1xA100", "1xH100", "8xA100", "8xH100", "8xH200", "8xB200", "8xB300", "4xGB200")
HOSTS += ("v5e:2x4", "v5p:2x2x1", "v6e:2x4", "v7x:2x2x1")
SLOTS, LENGTH = 64, 8192  # of the cache that such an engine is to have
NEAR = 1.35  # times


def errors() -> list[dict[str, Any]]:
    """By part and work: the number of rows, the median error in times, and how many are within `NEAR`."""
    found = []
    for held in (True, False):
        for work in ("decode", "update"):
            some = [row for row in rows() if row.held_out == held and row.work == work]
            near = sum(abs(math.log(predicted(row) / row.measured)) <= math.log(NEAR) for row in some)
            part = "held out" if held else "fitted"
            median = round(math.exp(error(some)), 2)
            found.append({"rows": part, "work": work, "number": len(some), "median": median, "near": near})
    return found


def predictions() -> list[dict[str, Any]]:
    """Every row with its roofline, measurement and prediction, in ms (decode) or s (update)."""
    return [_prediction(row) for row in rows()]


def _prediction(row: Row) -> dict[str, Any]:
    estimate = predicted(row)
    return {
        "system": row.system,
        "hardware": row.hardware,
        "model": row.model + (f", {row.layers} layers" if row.layers else ""),
        "work": _work(row),
        "unit": "ms" if row.work == "decode" else "s",
        "roofline": _three_digits(least(row)),
        "measured": _three_digits(row.measured),
        "predicted": _three_digits(estimate),
        "ratio": round(estimate / row.measured, 2),
        "held_out": row.held_out,
    }


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def _work(row: Row) -> str:
    if row.work == "decode":
        return f"token of {row.rows} × {row.length:,}" + (f", tensor {row.tensor}" if row.tensor > 1 else "")
    text = f"step of {row.micro_batches} × {row.rows} × {row.length:,}"
    text += f", adapters {row.rank}" if row.rank else ""
    text += f", context {row.context}" if row.context > 1 else ""
    return text + (f", remat {row.remat}" if row.remat != "full" else "")


def largest_models() -> list[dict[str, Any]]:
    """Of each machine the largest known model whose engine fits; without a model where none does."""
    found = []
    for name in HOSTS:
        on = hardware(name, compiled=False)
        row: dict[str, Any] = {"machine": name, "devices": len(on.devices), "hbm_gib": round(on.chip.hbm / GIB, 1)}
        if (model := largest(on, SLOTS, LENGTH)) is not None:
            row |= {
                "model": model.model,
                "tensor": model.tensor,
                "gib": round(model.bytes / GIB, 1),
                "tokens_per_second": round(model.tokens_per_second),
            }
        found.append(row)
    return found


if __name__ == "__main__":
    figures = {"errors": errors(), "rows": predictions(), "largest": largest_models()}
    FILE.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
