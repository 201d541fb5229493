"""The smallest runs of the five games on Atlas: a few steps of a few episodes, a checkpoint after each."""

from __future__ import annotations

from tests.train import runs

SHARED = (
    *("train.save_every=1", "train.keep=99", "evaluate.sets=[]", "rollout.slots=16"),
    *("learner.micro_batch_rows=2", "learner.logprob_chunk=128"),
)
SHORT = ("rollout.max_length=256", "learner.buckets=[256]")
SETS: dict[str, tuple[str, ...]] = {
    "ssp": (*SHORT, "train.steps=4", "train.batch_size=4", "ssp.solver.samples=2", "ssp.replay_reset_every=3"),
    "scope": (*runs.SCOPE, "scope.iterations=1", "scope.max_batches=2"),
    "spice": ("train.steps=4", "train.batch_size=2", "spice.challenger.samples=2", "spice.reasoner.samples=2"),
    "spell": (
        *("train.steps=4", "spell.groups=2", "spell.clusters_per_round=4"),
        *("spell.responder.samples=2", "spell.verifier.samples=2"),
    ),
    "score": ("train.steps=4", "train.batch_size=2", "score.solver.samples=2"),
}


def card(game: str) -> str:
    """Its card, under configs/."""
    return f"{game}/atlas.toml"


def sets(game: str, *more: str) -> list[str]:
    """The overrides of its small run, and more of them."""
    return [*SHARED, *SETS[game], *more]
