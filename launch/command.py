"""What a launch is made of: the training command, and the text that starts it somewhere."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scope_jax.config import CardError

NEW_KEY = "od -An -N32 -v -tx1 /dev/urandom | tr -d ' \\n'"  # in a script: prints a key for a run, 64 characters


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


def check_lasts(job: Job, mounts: Iterable[str], key: str) -> None:
    """Raises CardError for a run folder inside a container, with which it would be removed: it must be on object
    storage or in one of the folders of the container that are mounted. key: names them in the card."""
    run, folders = posixpath.normpath(job.run), [posixpath.normpath(folder) for folder in mounts]
    if "://" not in job.run and not any(
        run == folder or run.startswith(f"{folder.rstrip('/')}/") for folder in folders
    ):
        raise CardError(
            f"the run folder {job.run} would be removed with its container; give --run a folder in one of those that "
            f"{key} mounts ({', '.join(folders) or 'none'}), or a path on object storage."
        )


@dataclass(frozen=True)
class Launch:
    """text: what --print shows. program: reads the text on standard input; (): the text is a command for bash."""

    text: str
    program: tuple[str, ...] = ()
