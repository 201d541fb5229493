"""A page of the documentation (tools/site.py): the plans of the cards, what estimates of time assume, how far they are
from measurements, and the largest models that engines hold.

It reads benchmarks/baselines/plans.json and calibration.json, which `benchmarks/plans.py` and `benchmarks.calibration`
write.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.calibration.fit import SECONDS
from scope_jax.plan.assumptions import ASSUMED, Assumptions

BASELINES = Path(__file__).with_name("baselines")
Figures = Mapping[str, Any]
INTRODUCTION = "[Plans](plans.md) says how these figures come about. GiB are per device.\n"
CARDS = """\
Written by `python benchmarks/plans.py`. "Full rows at once" are episodes of `rollout.max_length` that the pages hold,
over all devices. MFU is estimated for one micro-batch of the longest bucket, tokens per second for the card's engine,
whose tensor groups stand beside it. Rows with `--set` are models without a card, in that of SPIRAL (replies of 12,800
tokens at most). `~`: by arithmetic, which is low for an update's temporaries: compiled peaks were .89 to 1.26 times as
high. gpt-oss-20b compiles for v5p with libtpu 0.0.50 (JAX 0.12), and not with 0.0.42 (JAX 0.10.2).
"""
ASSUMPTIONS = """\
`python -m benchmarks.calibration.fit` fits these to the measurements that are not held out. `network` has no row that
depends on it, and `link` on GPUs none: there they are expectations. `collective` on GPUs rests on one row.
"""
MEASUREMENTS = """\
Written by `python -m benchmarks.calibration`; `benchmarks/calibration/measurements.csv` has the source of every row.
"""
LARGEST = """\
The largest model of `scope_jax/plan/architectures.py` whose engine fits alone on one machine, as in `scope-jax serve`
or with `rollout.devices`, in bfloat16 with room for 64 episodes of 8,192 tokens, by arithmetic; tokens per second with
4,096 tokens in each.
"""


def page() -> str:
    """The Markdown text."""
    plans = json.loads((BASELINES / "plans.json").read_text(encoding="utf-8"))
    measured = json.loads((BASELINES / "calibration.json").read_text(encoding="utf-8"))
    parts = [
        f"# Tables of plans\n\n{INTRODUCTION}",
        f"## Cards\n\n{CARDS}\n{cards([plans[name] for name in sorted(plans)])}\n",
        f"## Assumptions\n\n{ASSUMPTIONS}\n{assumptions()}\n",
        f"## Predicted and measured\n\n{MEASUREMENTS}\n{errors(measured['errors'])}\n",
        f"{predictions(measured['rows'])}\n",
        f"## Largest models\n\n{LARGEST}\n{largest(measured['largest'])}\n",
    ]
    return "\n".join(parts)


def cards(plans: Sequence[Figures]) -> str:
    """A row for each plan."""
    head = (
        "card | hardware | fits | peak of HBM, GiB | phase | state | engine | cache | temporaries of an update "
        "| full rows at once | MFU | tensor | tokens/s | figures"
    )
    return _table(head, [_card(plan) for plan in plans])


def _card(plan: Figures) -> list[str]:
    learn, generate = (plan["phases"][name]["parts_gib"] for name in ("learn", "generate"))
    known = ("master weights", "moments", "reference", "search index")
    state = sum(learn.get(name, 0) for name in known)
    rest = sum(size for name, size in learn.items() if name not in known)
    mesh = next((row for row in plan.get("engine_meshes", ()) if row["card"]), None)
    return [
        f"`{plan['card']}`",
        plan["on"],
        "yes" if plan["fits"] else "**no**",
        f"{plan['peak_gib']:.1f} of {plan['hbm_gib']:.1f}",
        plan["phase"],
        f"{state:.1f}",
        f"{generate['engine weights']:.1f}",
        f"{generate['cache']:.1f}",
        f"{'' if plan['compiled'] else '~ '}{rest:.1f}",
        f"{plan['full_rows']} × {plan['max_length']:,}",
        f"{plan['mfu']:.2f}" if "mfu" in plan else "–",
        "–" if mesh is None else f"{mesh['tensor']}",
        "–" if mesh is None else f"{mesh['tokens_per_second']:,}",
        "compiled" if plan["compiled"] else "arithmetic",
    ]


def assumptions() -> str:
    """What is assumed, and why: the docstring under each field."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(Assumptions)).body if isinstance(node, ast.ClassDef))
    texts = [ast.literal_eval(node.value) for node in body if isinstance(node, ast.Expr)][1:]
    lines = []
    for name, text in zip(vars(ASSUMED["gpu"]), texts, strict=True):
        values = [vars(ASSUMED[platform])[name] for platform in ("gpu", "tpu")]
        shown = [f"{1e6 * value:g} µs" if name in SECONDS else f"{value:g}" for value in values]
        lines.append([f"`{name}`", *shown, " ".join(text.split())])
    return _table("assumption | GPU | TPU | meaning", lines)


def errors(found: Sequence[Figures]) -> str:
    """The errors of the rows that are held out, and of those that the assumptions are fitted to."""
    lines = [
        [f"{row['rows']}, {row['work']}", f"{row['number']}", f"{row['median']:.2f} times", f"{row['near']}"]
        for row in found
    ]
    return _table("rows | number | median error | within 1.35 times", lines)


def predictions(found: Sequence[Figures]) -> str:
    """A row for each measurement."""
    lines = []
    for row in found:
        times = [f"{row[name]:.3g} {row['unit']}" for name in ("roofline", "measured", "predicted")]
        setting = [row["system"], row["hardware"], row["model"], row["work"]]
        lines.append([*setting, *times, f"{row['ratio']:.2f}", "held out" if row["held_out"] else ""])
    head = "system | hardware | model | work | roofline | measured | predicted | predicted / measured | part"
    return _table(head, lines)


def largest(found: Sequence[Figures]) -> str:
    """A row for each machine."""
    lines = []
    for row in found:
        machine = [f"`{row['machine']}`", f"{row['devices']} × {row['hbm_gib']:.1f}"]
        fits = ["none", "", "", ""]
        if "model" in row:
            fits = [row["model"], f"{row['tensor']}", f"{row['gib']:.1f}", f"{row['tokens_per_second']:,}"]
        lines.append([*machine, *fits])
    return _table("machine | memory, GiB | largest model | tensor | GiB per device | tokens/s", lines)


def _table(head: str, lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = "|" + "---|" * (head.count("|") + 1)
    return "\n".join([f"| {head} |", rule, *("| " + " | ".join(line) + " |" for line in lines)])
