"""How well the current weights answer questions they never learned from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scope_jax import data
from scope_jax.assemble import World, assemble
from scope_jax.checkpoint import load, locate
from scope_jax.config import EvalSet, load_card
from scope_jax.convert import run_of
from scope_jax.errors import UserError
from scope_jax.types import Metrics


def evaluate(world: World, sets: Sequence[EvalSet]) -> tuple[Metrics, dict[str, list[dict[str, Any]]]]:
    """(metrics, records by set): `eval/<set>/<measure>`, the mean over the set of each of the game's measures.

    Every row is played once at the card's evaluation temperature.
    """
    cfg = world.cfg
    metrics: Metrics = {}
    records: dict[str, list[dict[str, Any]]] = {}
    for card in sets:
        rows = data.load(card.path, world.system.exam_fields(cfg), card.limit)
        answered = world.system.answer(
            cfg,
            world.tools(f"evaluate {card.name}"),
            rows,
            temperature=cfg.evaluate.temperature,
            max_tokens=cfg.evaluate.max_tokens,
        )
        records[card.name] = answered
        for measure in answered[0]["measures"]:
            metrics[f"eval/{card.name}/{measure}"] = sum(r["measures"][measure] for r in answered) / len(answered)
    return metrics, records


def evaluate_target(target: Path, card: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Metrics and records of a run folder (its newest checkpoint) or of a Hugging Face folder under a card.

    A run, or one of its checkpoints, is evaluated under its own config unless `card` names another; overrides apply to
    either. Returns {"target", "step" (None for a folder of weights), "metrics", "records"}.
    """
    run = run_of(target)
    if card is None and run is None:
        raise UserError(f"{target} is no run folder (it has no config.toml); name the card to use with --card.")
    own = [] if run else [f"model.checkpoint={target}"]
    cfg = load_card(card or (run or target) / "config.toml", [*own, *overrides])
    if not cfg.evaluate.sets:
        raise UserError("the card names no evaluation set; add an [[evaluate.sets]] table with name and path.")
    with TemporaryDirectory() as scratch:
        world = assemble(cfg, run or Path(scratch))
        states, _, step = world.start(load(locate(target), world.targets()) if run else None)
        world.voices.publish(states)
        metrics, records = evaluate(world, cfg.evaluate.sets)
    return {"target": str(target), "step": step if run else None, "metrics": metrics, "records": records}
