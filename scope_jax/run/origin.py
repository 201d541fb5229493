"""The state of another run that a run starts from: `train.origin` in a card, `--from` on the command line.

    RUN               the newest checkpoint of a run
    RUN@45            its checkpoint of step 45
    RUN@iteration-1   its checkpoint with this name

A run that starts from another one has its own folder and card. It takes over everything in the checkpoint: weights and
moments of the policies, the game's memory, moving baselines and the step number. The base model (KL reference, judge)
is the card's `model.checkpoint`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import game_of, load_card
from scope_jax.run.checkpoint import CheckpointError, checkpoints_in, locate
from scope_jax.run.config_file import differing
from scope_jax.run.folder import begun
from scope_jax.run.processes import by_one

LOOSE = {"init": "kaiming", "base_dtype": "bfloat16"}  # keys of [model.adapter] in which two runs may differ
_PLACE = re.compile(r"(.+)@(\d+|[a-z]+-\d+)")


class OriginError(UserError):
    """A run cannot start from this origin; the message is one sentence with its folder and the remedy."""


def with_origin(cfg: Config, run: Path) -> Config:
    """The card with its origin resolved to the path of one checkpoint, so that it does not change while the other run
    continues; process 0 looks it up.

    A resumed run keeps the origin recorded in its folder, whether or not it is given again; so does a run that has
    not begun, if nothing else in the card has changed since. Raises CheckpointError or
    OriginError for an origin that does not exist or has another game or other policies than the card.
    """
    origin = by_one(lambda: _origin(cfg, run))
    return cfg.model_copy(update={"train": cfg.train.model_copy(update={"origin": origin})})


def _origin(cfg: Config, run: Path) -> str | None:
    requested, recorded = cfg.train.origin, _recorded(cfg, run)
    if requested is None or (recorded is not None and _is(requested, recorded)):
        return recorded
    origin = str(checkpoint_at(requested))
    check_game(cfg, Path(origin))
    return origin


def _recorded(cfg: Config, run: Path) -> str | None:
    config = run / "config.toml"
    if not config.is_file():
        return None
    card = load_card(config)
    same = set(differing(card, cfg)) <= {"train.origin"}
    return card.train.origin if same or begun(run) else None


def _read(origin: str) -> tuple[Path, str | None]:
    """(folder, step or name of its checkpoint) of an origin."""
    match = _PLACE.fullmatch(origin)
    folder, which = (match[1], match[2]) if match else (origin, None)
    return Path(os.path.abspath(folder)), which


def _is(requested: str, recorded: str) -> bool:
    """True if the requested origin can refer to the recorded checkpoint, which in a checkout is a relative path."""
    folder, which = _read(requested)
    place = Path(os.path.abspath(recorded))
    return folder == place or (folder == place.parents[1] and (which is None or _called(place, which)))


def _called(place: Path, which: str) -> bool:
    step, _, name = place.name.partition("-")
    return which in (step, name)


def checkpoint_at(origin: str) -> Path:
    folder, which = _read(origin)
    if which is None:
        return locate(folder)
    places = checkpoints_in(folder / "checkpoints")
    for place in places:
        if _called(place, which):
            return place
    kept = ", ".join(place.name for place in places) or "none"
    raise CheckpointError(f"the run in {folder} has no checkpoint {which}; it has: {kept}.")


def _card_of(place: Path) -> Config:
    """The card of the run that a checkpoint belongs to."""
    config = place.parents[1] / "config.toml"
    if not config.is_file():
        raise OriginError(f"{place} is not a checkpoint of a run ({config} is missing); give RUN or RUN@STEP.")
    return load_card(config)


def check_game(cfg: Config, place: Path) -> Config:
    """The card of the run that `place` belongs to; raises OriginError unless game and policies are the same."""
    before = _card_of(place)
    if before.system != cfg.system:
        raise OriginError(f"{place} is from a run of {before.system}, but the card is for {cfg.system}.")
    there, here = (game_of(cfg).policies(card) for card in (before, cfg))
    if set(there) != set(here):
        raise OriginError(f"{place} has the policies {', '.join(there)}, but the card trains {', '.join(here)}.")
    kinds = [card.model.adapter and card.model.adapter.model_copy(update=LOOSE) for card in (before, cfg)]
    if kinds[0] != kinds[1]:
        raise OriginError(
            f"{place} has another [model.adapter] than the card; make them equal, or export and start anew."
        )
    return before
