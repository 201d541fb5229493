"""Self-play post-training of language models in JAX: the learner, the games and the command line.

The packages `models`, `rollouts`, `retrieval` and `sharding` are top-level packages beside this one. Their names are
common, so this guard makes sure that Python imports ours.
"""

from importlib.util import find_spec
from pathlib import Path

_HOME = Path(__file__).resolve().parents[1]

for _room in ("models", "rollouts", "retrieval", "sharding"):
    _spec = find_spec(_room)
    for _place in (_spec.submodule_search_locations or [_spec.origin or "somewhere"]) if _spec else ():
        if Path(_place).resolve().parent != _HOME:
            raise ImportError(
                f"`import {_room}` finds {_place}, a package that is not part of scope-jax; run scope-jax in an "
                f"environment of its own (make demo creates one), with {_HOME} first on PYTHONPATH."
            )
