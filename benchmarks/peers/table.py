"""Results as one JSON object and as a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers import cases
from benchmarks.peers.measure import CONTENDERS, Measured

OURS = "ours"


def ratios(measured: Measured, other: str) -> list[float]:
    """How many times as fast ours is as another contender, in each repetition."""
    return [b / a for a, b in zip(measured.seconds[OURS], measured.seconds[other], strict=True)]


def best_peer(measured: Measured) -> tuple[list[str], float] | None:
    """(the contenders that were the fastest peer of some repetition, median ratio to the fastest); None without peers.

    The fastest is chosen in every repetition anew.
    """
    peers = [name for name in measured.seconds if name != OURS]
    if not peers:
        return None
    fastest = [min(peers, key=lambda name: measured.seconds[name][i]) for i in range(len(measured.matmul))]
    times = [ratios(measured, name)[i] for i, name in enumerate(fastest)]
    return sorted(set(fastest), key=peers.index), statistics.median(times)


def summary(measured: Measured) -> dict[str, Any]:
    """Medians of a case, for the JSON line."""
    flops, tokens = cases.useful_flops(measured.case), cases.tokens(measured.case)
    contenders = {
        name: {
            "seconds": round(statistics.median(seconds), 4),
            "tokens_per_second": round(statistics.median(tokens / second for second in seconds), 1),
            "share_of_peak": round(
                statistics.median(flops / s / peak for s, peak in zip(seconds, measured.matmul, strict=True)), 4
            ),
            "ours_is_times_as_fast": round(statistics.median(ratios(measured, name)), 3),
            "runs": [round(second, 4) for second in seconds],
        }
        for name, seconds in measured.seconds.items()
    }
    result: dict[str, Any] = {
        "matmul_gflops": round(statistics.median(measured.matmul) / 1e9, 1),
        "others_share_max": round(measured.others, 4),
        "rejected": measured.rejected,
        "contenders": contenders,
        "cannot": measured.cannot,
    }
    if best := best_peer(measured):
        result |= {"best_peer": best[0], "times_best_peer": round(best[1], 3)}
    return result


def _cell(measured: Measured, name: str, notes: list[str]) -> str:
    """Tokens per second of a generation case, seconds of the others; "–" with a note, or nothing if not a contender."""
    if name in measured.cannot:
        note = f"{name}: {measured.cannot[name]}"
        if note not in notes:
            notes.append(note)
        return f"– [{notes.index(note) + 1}]"
    if name not in measured.seconds:
        return ""
    result = summary(measured)["contenders"][name]
    if measured.case in cases.GENERATION:
        return f"{result['tokens_per_second']:,.0f}"
    return f"{result['seconds']:.2f} s"


def table(results: Sequence[Measured]) -> str:
    """A row for each case and a column for each contender that did any."""
    taking = [c.name for c in CONTENDERS if any(c.name in m.seconds or c.name in m.cannot for m in results)]
    heads = ["case", *taking, "ours, × the best peer", "ours, share of the matmul peak"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    notes: list[str] = []
    for measured in results:
        best = best_peer(measured)
        against = f"{best[1]:.2f} ({', '.join(best[0])})" if best else ""
        share = f"{summary(measured)['contenders'][OURS]['share_of_peak']:.2f}"
        cells = [_cell(measured, name, notes) for name in taking]
        lines.append(f"| {' | '.join([measured.case, *cells, against, share])} |")
    return "\n".join([*lines, *([""] if notes else []), *(f"[{i}] {note}" for i, note in enumerate(notes, start=1))])
