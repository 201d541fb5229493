"""How well the current weights answer questions they never learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scope_jax.assemble import World, assemble
from scope_jax.checkpoint import load, locate
from scope_jax.config import load_card
from scope_jax.convert import run_of
from scope_jax.errors import UserError
from scope_jax.rewards import mean
from scope_jax.types import Metrics


def evaluate(world: World) -> tuple[Metrics, dict[str, list[dict[str, Any]]]]:
    """(metrics, records by set): `eval/<set>/<measure>`, the mean over the set of each of the game's measures.

    Every row is played once at the card's evaluation temperature. A row counts in the means of the measures it has.
    """
    cfg = world.cfg
    metrics: Metrics = {}
    records: dict[str, list[dict[str, Any]]] = {}
    for exam, rows in world.exams.items():
        answered = world.system.answer(
            cfg,
            world.tools(f"evaluate {exam}"),
            rows,
            temperature=cfg.evaluate.temperature,
            max_tokens=cfg.evaluate.max_tokens,
        )
        records[exam] = answered
        metrics |= {f"eval/{exam}/{name}": value for name, value in means(answered).items()}
    return metrics, records


def means(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """The mean of each measure over the records that have it."""
    names = dict.fromkeys(name for record in records for name in record["measures"])
    return {name: mean([r["measures"][name] for r in records if name in r["measures"]]) for name in names}


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
        trainer = assemble(cfg, run or Path(scratch))
        states, _, step = trainer.start(load(locate(target), trainer.targets()) if run else None)
        trainer.world.voices.publish(states)
        metrics, records = evaluate(trainer.world)
    return {"target": str(target), "step": step if run else None, "metrics": metrics, "records": records}
