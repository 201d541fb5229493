"""What a launch is made of: the training command, and the text that starts it somewhere."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """What to train: the arguments of `scope-jax train`, as given to launch/run.py."""

    card: str
    run: str
    overrides: tuple[str, ...] = ()

    def words(self, *program: str) -> list[str]:
        """The command; program: what scope-jax is called there, e.g. python -m scope_jax.

        Overrides of [launch] are left out: they are for the launcher, and training does not read that table.
        """
        passed = [each for each in self.overrides if not re.match(r"\s*launch\s*[.=]", each)]
        sets = [word for override in passed for word in ("--set", override)]
        return [*program, "train", self.card, "--run", self.run, *sets]

    @property
    def name(self) -> str:
        """A name for schedulers: the run folder's own and a hash of its path; a-z, 0-9 and -, at most 40 characters.

        A path on object storage is hashed as it is, so that the name does not depend on the current folder.
        """
        own = re.sub(r"[^a-z0-9]+", "-", Path(self.run).name.lower())[:33].strip("-") or "scope-jax"
        place = self.run.rstrip("/") if "://" in self.run else os.path.abspath(self.run)
        return f"{own}-{hashlib.sha256(place.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Launch:
    """text: what --print shows. program: reads the text on standard input; (): the text is a command for bash."""

    text: str
    program: tuple[str, ...] = ()
