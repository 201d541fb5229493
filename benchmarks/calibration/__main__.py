"""Writes the tables of docs/plans.md: what plan's estimator predicts of published measurements, and the largest models
that engines hold.

    python -m benchmarks.calibration

Takes seconds: nothing is compiled or executed.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
from pathlib import Path

from scope_jax.plan.hardware import ABSENT, GIB, hardware

if __name__ == "__main__":
    os.environ |= ABSENT

from benchmarks.calibration.fit import SECONDS
from benchmarks.calibration.largest import largest
from benchmarks.calibration.rows import Row, error, least, predicted, rows
from scope_jax.plan.assumptions import ASSUMED, Assumptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plans.md"
HOSTS = ("1xA100", "1xH100", "8xA100", "8xH100", "8xH200", "8xB200", "8xB300", "4xGB200")
HOSTS += ("v5e:2x4", "v5p:2x2x1", "v6e:2x4", "v7x:2x2x1")
SLOTS, LENGTH = 64, 8192  # of the cache that such an engine is to have


def written(text: str) -> str:
    """The page with the tables between their marks."""
    tables = {"assumptions": assumptions(), "calibration": calibration(), "largest": largest_models()}
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def assumptions() -> str:
    """What is assumed, and why: the docstring under each field."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(Assumptions)).body if isinstance(node, ast.ClassDef))
    texts = [ast.literal_eval(node.value) for node in body if isinstance(node, ast.Expr)][1:]
    lines = ["| assumption | GPU | TPU | |", "|---|---|---|---|"]
    for name, text in zip(vars(ASSUMED["gpu"]), texts, strict=True):
        values = [vars(ASSUMED[platform])[name] for platform in ("gpu", "tpu")]
        shown = [f"{1e6 * value:g} µs" if name in SECONDS else f"{value:g}" for value in values]
        lines.append(f"| `{name}` | {' | '.join(shown)} | {' '.join(text.split())} |")
    return "\n".join(lines)


def calibration() -> str:
    """The errors of both parts, and all rows."""
    lines = ["| rows | number | median error | within 1.35 times |", "|---|---|---|---|"]
    for held in (True, False):
        for works in (("decode",), ("update",), ("decode", "update")):
            some = [row for row in rows() if row.held_out == held and row.work in works]
            near = sum(abs(math.log(predicted(row) / row.measured)) <= math.log(1.35) for row in some)
            what = f"{'held out' if held else 'fitted'}, {' and '.join(works)}"
            lines.append(f"| {what} | {len(some)} | {math.exp(error(some)):.2f} times | {near} |")
    head = "| system | hardware | model | work | roofline | measured | predicted | predicted / measured | |"
    lines += ["", head, "|---|---|---|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_line, rows())])


def _line(row: Row) -> str:
    unit, found = "ms" if row.work == "decode" else "s", predicted(row)
    model = row.model + (f", {row.layers} layers" if row.layers else "")
    cells = [row.system, row.hardware, model, _work(row)]
    cells += [f"{value:.3g} {unit}" for value in (least(row), row.measured, found)]
    cells += [f"{found / row.measured:.2f}", "held out" if row.held_out else ""]
    return "| " + " | ".join(cells) + " |"


def _work(row: Row) -> str:
    if row.work == "decode":
        return f"token of {row.rows} × {row.length:,}" + (f", tensor {row.tensor}" if row.tensor > 1 else "")
    text = f"step of {row.micro_batches} × {row.rows} × {row.length:,}"
    text += f", adapters {row.rank}" if row.rank else ""
    text += f", context {row.context}" if row.context > 1 else ""
    return text + (f", remat {row.remat}" if row.remat != "full" else "")


def largest_models() -> str:
    """Of each machine the largest known model whose engine fits."""
    lines = [
        "| machine | memory, GiB | largest model | tensor | GiB per device | tokens/s |",
        "|---|---|---|---|---|---|",
    ]
    for name in HOSTS:
        on = hardware(name, compiled=False)
        found = largest(on, SLOTS, LENGTH)
        memory = f"{len(on.devices)} × {on.chip.hbm / GIB:.1f}"
        if found is None:
            lines.append(f"| `{name}` | {memory} | none | | | |")
            continue
        fits = f"{found.model} | {found.tensor} | {found.bytes / GIB:.1f} | {found.tokens_per_second:,.0f}"
        lines.append(f"| `{name}` | {memory} | {fits} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
