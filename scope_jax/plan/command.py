"""`scope-jax plan`: from a card's path to the figures that are printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.plan import asynchronous, engines, knobs, memory, page, planning
from scope_jax.plan.architectures import model_of
from scope_jax.plan.hardware import Hardware, without_compiler
from scope_jax.plan.planning import Planner, figures, index_vectors
from scope_jax.run.opened import OpenedCard
from scope_jax.run.rules import enforce, plannable

SLOW_DTYPE = (
    'warning: XLA\'s programs for CPUs convert bfloat16 to float32 at every use; model.compute_dtype = "float32" is '
    "several times as fast here"
)


def plan(
    card: Path,
    sets: Sequence[str],
    on: Hardware,
    *,
    model_config: Path | None = None,
    index: str | None = None,
    whole: bool = False,
    search: bool = True,
    remat: bool = False,
    overlapping: str | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Any]:
    """The figures of a card on this hardware. search: if it does not fit, find what each setting frees, and one that
    fits. remat: compare all values of `learner.remat`. overlapping: lengths of episodes (`asynchronous.lengths_of`),
    with which ways in which steps may follow each other are compared.

    Raises UserError, ValueError or FileNotFoundError with one sentence if the card cannot be planned.
    """
    cfg = load_card(card, sets)
    model, source = model_of(cfg.model.checkpoint, model_config)
    enforce(OpenedCard(cfg, model=model), plannable(cfg, model_config is not None))
    vectors, uncounted = index_vectors(cfg, index)
    planner = Planner(model, on, vectors, whole, tell)
    with on.tracing():
        needs = planner.needs(cfg)
        found = {
            "card": str(card),
            "set": list(sets),
            "model": Path(cfg.model.checkpoint).name,
            "shape_from": source,
            "compute_dtype": cfg.model.compute_dtype,
            **figures(planner, needs),
            **_least(needs),
            "engine_meshes": engines.meshes(planner, needs),
            "notes": _notes(needs, on, uncounted, whole),
        }
        if remat:
            found["remat"] = knobs.remat_policies(planner, card, sets)
        if overlapping is not None:
            found["overlaps"] = asynchronous.overlaps(planner, card, sets, overlapping)
        if not found["fits"] and search:
            found["knobs"] = knobs.freed(planner, card, sets, needs)
            found["setting"] = knobs.setting_that_fits(planner, card, sets, needs)
    return found


def refuse_early(card: Path, sets: Sequence[str], on: Hardware, tell: Callable[[str], None]) -> None:
    """Raises UserError with the plan's sentence if the card does not fit."""
    found = plan(card, sets, on, tell=tell)
    if short := page.shortage(found):
        raise UserError(short)
    tell(page.verdict(found))


def at_start(card: Path, sets: Sequence[str], here: Hardware | None) -> dict[str, Any] | None:
    """The figures of the card on this machine by arithmetic, which takes no time; None if the machine's memory is not
    known, or if the card cannot be planned: the run says why, in its own words. Raises UserError if what is certain to
    be needed is not there."""
    if here is None or not here.chip.hbm:
        return None
    try:
        found = plan(card, sets, without_compiler(here))
    except (OSError, UserError):
        return None
    if impossible := page.impossible(found):
        raise UserError(impossible)
    return found


def statements(found: Mapping[str, Any]) -> list[str]:
    """What a run takes of the machine's memory, and warnings: if that is more than there is, and of a slow dtype."""
    said = [page.taken(found)]
    if short := page.shortage(found):
        said.append(f"warning: memory is short: {short}")
    if found["chip"] == "cpu" and found["compute_dtype"] == "bfloat16":
        said.append(SLOW_DTYPE)
    return said


def _least(needs: planning.Needs) -> dict[str, Any]:
    """What is certain to be needed."""
    phase, size = memory.least(needs.held, needs.learner)
    return {"least_phase": phase, "least_gib": planning.gib(size)}


def outline(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a report sets beside what a run used: GiB of a device in the phase that needs most, and by arithmetic tokens
    per second of the whole run in sampling and in updates; None for a chip whose speed is not known."""
    learning = None
    if "seconds" in found:
        learning = found["tokens_per_device"] * math.prod(found["mesh"].values()) / found["seconds"]
    return {
        "on": f"{found['devices']} x {found['chip']}",
        "phase": found["phase"],
        "peak_gib": found["peak_gib"],
        "generated_tokens_per_second": found["decode"].get("tokens_per_second"),
        "trained_tokens_per_second": learning,
    }


def _notes(needs: planning.Needs, on: Hardware, uncounted: str, whole: bool) -> list[str]:
    notes = [uncounted] if uncounted else []
    if needs.held.apart:
        learning, generating = needs.learner.mesh.size, needs.engine.mesh.size
        notes.append(
            f"publish and learn are phases of the {learning} devices that learn, the others of the {generating} others"
        )
    if on.compiles and not whole:
        left_out = [str(bucket) for bucket in needs.cfg.learner.buckets[:-1]]
        if left_out:
            notes.append(f"shorter buckets ({', '.join(left_out)}) are not compiled; --whole compiles them")
        if any(needs.engine.model.num_layers > 2 for _ in needs.compiled):
            notes.append(
                "programs with unrolled layers are compiled with a few and extended to all in a straight line; --whole "
                "compiles them"
            )
    if not on.compiles:
        notes.append(
            "whether the engine's loop over pages updates them in place on this hardware was not compiled here"
        )
    if on.platform == "gpu":
        notes.append("a run takes 95 % of a GPU's memory unless XLA_CLIENT_MEM_FRACTION or its like is set")
    return notes
