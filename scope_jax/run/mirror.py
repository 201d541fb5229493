"""A run folder on object storage: the run works in a local folder, which is copied there.

Objects cannot be appended to or renamed, and orbax does not write to s3://. So logs and checkpoints are written to
local files, as in any run, and uploaded: a checkpoint when it is complete, with its seal as the last object and the log
files before it. What is in the bucket can therefore always be resumed from, and a checkpoint without a seal does not
count. A run begins with a download, and takes over nothing else from an earlier process: the bucket is the run.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scope_jax.files import all_inside, is_partial
from scope_jax.models.files.seal import SEAL, fault
from scope_jax.run.checkpoint import CHECKPOINT, REFERENCE, reference_of
from scope_jax.run.fetching import Store, is_object, local_place
from scope_jax.run.files import RunError
from scope_jax.run.processes import by_one, together

CHECKPOINTS = "checkpoints"
INDEX = "index"  # of the search: built again where it is missing
OWNER = "owner"  # the object that says which process writes the run
CONFIG = "config.toml"  # the first of its files there
TOKEN = ".token"
FOLDER = re.compile(f"{CHECKPOINT.pattern}|{REFERENCE}[0-9]{{1,12}}")  # reference-45


class Mirror:
    """The copy of one run folder on object storage. folder: the local one; one process at a time uses it."""

    def __init__(self, url: str, spool: Path) -> None:
        self.url, self.folder = url, local_place(url, spool.absolute() / "runs")
        self._store = Store(url)
        self._token = secrets.token_hex(8).encode()
        self._uploaded: dict[str, tuple[int, int]] = {}  # by name, size and time of change of an uploaded file
        self._checkpoints: list[str] = []  # names of the complete ones there, when they were downloaded
        self.owned = False  # whether this process may write there

    # ------------------------------------------------------------------------------------------------------- beginning
    def pull(self, tell: Callable[[str], None]) -> str:
        """Makes the local folder equal to the run on object storage: its files, and its newest valid checkpoint.

        Returns a token that the folder then holds. Nothing is written there before `own`.
        """
        self._lock()
        names = self._store.names()
        if names and not {CONFIG, OWNER} & set(names):  # OWNER alone: killed before it uploaded anything
            raise RunError(
                f"{self.url} is not empty and is not a run (no config.toml); give another folder with --run."
            )
        self._checkpoints = sealed(names)
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [name for name in names if name != OWNER and not name.startswith((CHECKPOINTS + "/", ".", INDEX + "/"))]
        inside = [name for name in names if _folder_of(name)]
        places = all_inside(self.folder, names, self.url)
        for name in sorted({name.split("/")[1] for name in names if name.startswith(CHECKPOINTS + "/")}):
            if FOLDER.fullmatch(name) is None:
                tell(f"{self.url}/{CHECKPOINTS} has {name!r}, which is not a checkpoint of a run; it is not touched.")
        for path in self.folder.iterdir():
            if path.name not in (CHECKPOINTS, INDEX) or CONFIG not in names:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self._store.download({name: places[name] for name in files})
        self._note(files)
        self._pull_checkpoint({name: places[name] for name in inside}, tell)
        (self.folder / TOKEN).write_bytes(self._token)
        return self._token.decode()

    def claim(self) -> None:
        """From now on this process writes the run; one that has written it so far ends with an error at its next
        checkpoint. Raises RunError if there are other checkpoints than when they were downloaded."""
        if sealed(self._store.names(CHECKPOINTS + "/")) != self._checkpoints:
            raise RunError(
                f"another process is writing the run in {self.url}; end it, then run the same command again."
            )
        self._store.write(OWNER, self._token)
        self.owned = True

    def has(self, token: str) -> bool:
        """True if the local folder is the one that `pull` has made, in whichever process."""
        place = self.folder / TOKEN
        return place.is_file() and place.read_text() == token

    def _lock(self) -> None:
        place = self.folder.with_name(self.folder.name + ".lock")
        place.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)  # until the process ends
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"another process on this machine is using {self.url}; wait for it.") from None

    def _pull_checkpoint(self, places: Mapping[str, Path], tell: Callable[[str], None]) -> None:
        kept, beside, folder = "", None, self.folder / CHECKPOINTS
        for name in reversed(self._checkpoints):
            self._pull_folder(places, name, tell)
            wrong, beside = fault(folder / name), reference_of(folder / name)
            if wrong is None and beside is not None:
                self._pull_folder(places, beside, tell)
                wrong = fault(folder / beside)
            if wrong is None:
                kept = name
                break
            tell(f"skipping the checkpoint {self.url}/{CHECKPOINTS}/{name}: {wrong}.")
        if not kept and self._checkpoints:
            raise RunError(f"every checkpoint in {self.url} is damaged; remove them to start from step 0.")
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in (kept, beside if kept else None):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _pull_folder(self, places: Mapping[str, Path], name: str, tell: Callable[[str], None]) -> None:
        """Downloads a folder of CHECKPOINTS, unless it is here under the same seal."""
        place, above = self.folder / CHECKPOINTS / name, f"{CHECKPOINTS}/{name}/"
        if not (place / SEAL).is_file() or (place / SEAL).read_bytes() != self._store.read(above + SEAL):
            if place.exists():
                shutil.rmtree(place)
            tell(f"downloading {self.url}/{CHECKPOINTS}/{name}")
            self._store.download({each: path for each, path in places.items() if each.startswith(above)})

    # --------------------------------------------------------------------------------------------------------- writing
    def push_files(self) -> None:
        """Uploads the files that have changed, except checkpoints and the index, and deletes those that are gone."""
        self._check_owner()
        found = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        changed = [
            name
            for name, path in found.items()
            if not name.startswith((CHECKPOINTS + "/", INDEX + "/", "."))
            and not is_partial(path)
            and self._uploaded.get(name) != _state(path)
        ]
        self._note(changed)  # before: what is appended in the meantime counts as changed
        for part in ([name for name in changed if name == CONFIG], [name for name in changed if name != CONFIG]):
            self._store.upload([(found[name], name) for name in part])
        gone = self._uploaded.keys() - found.keys()  # such as a tracker's files, which a resumed run writes anew
        self._store.delete(gone)
        for name in gone:
            del self._uploaded[name]

    def push_checkpoint(
        self, folder: Path, name: str, stays: Callable[[list[str]], set[str]], reference: str | None = None
    ) -> None:
        """Uploads a sealed checkpoint and deletes older ones. folder: where it is now; name: what it is called.

        stays: of the names of all checkpoints there, those to keep. reference: the sealed folder of its reference,
        which is uploaded before it, unless it is there.
        """
        self.push_files()
        if reference is not None:
            place = self.folder / CHECKPOINTS / reference
            if self._store.read(f"{CHECKPOINTS}/{reference}/{SEAL}") != (place / SEAL).read_bytes():
                self._push_folder(place, reference)
        self._push_folder(folder, name)
        names = self._store.names(CHECKPOINTS + "/")
        stay = stays(sealed(names))
        if reference is not None:
            stay |= {reference}
        gone = [each for each in names if (other := _folder_of(each)) and other not in stay]
        self._store.delete([each for each in gone if each.endswith("/" + SEAL)])  # first, so that none is left half
        self._store.delete(gone)

    def _push_folder(self, folder: Path, name: str) -> None:
        """Uploads a sealed folder as one of CHECKPOINTS, its seal as the last object."""
        above = f"{CHECKPOINTS}/{name}/"
        paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        self._store.delete([above + SEAL])  # of an earlier, damaged one
        self._store.upload([(path, above + inside) for inside, path in paths.items() if inside != SEAL])
        self._store.upload([(folder / SEAL, above + SEAL)])

    def _note(self, names: list[str]) -> None:
        self._uploaded |= {name: _state(self.folder / name) for name in names}

    def _check_owner(self) -> None:
        if self._store.read(OWNER) != self._token:
            raise RunError(f"another process has taken over the run in {self.url}; this one writes nothing more.")


def _folder_of(name: str) -> str:
    """The name of the checkpoint, or of the reference beside it, that an object of a run belongs to; "" for others."""
    above, *inside = name.split("/")
    return inside[0] if above == CHECKPOINTS and len(inside) > 1 and FOLDER.fullmatch(inside[0]) else ""


def sealed(names: list[str]) -> list[str]:
    """The names of the complete checkpoints among the objects of a run, by step."""
    found = [of for name in names if (of := _folder_of(name)) and name == f"{CHECKPOINTS}/{of}/{SEAL}"]
    found = [name for name in found if CHECKPOINT.fullmatch(name)]
    return sorted(found, key=lambda name: (int(name.partition("-")[0]), name))


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@contextmanager
def run_folder(run: str, spool: Path, tell: Callable[[str], None]) -> Iterator[tuple[Path, Mirror | None]]:
    """(the local folder of a run, its mirror if `run` is on object storage); at the end the files are uploaded, if the
    mirror was owned.

    Several processes must share `spool`. Raises RunError if they do not, or if the run is in use.
    """
    if not is_object(run):
        yield Path(run), None
        return
    mirror = Mirror(run, spool)
    token = by_one(lambda: mirror.pull(tell))
    if not all(together(lambda: mirror.has(token))):
        raise RunError(
            f"the processes do not share the folder {spool.absolute()}, in which a run on object storage works; set "
            "train.spool to a folder on storage that all of them share."
        )
    try:
        yield mirror.folder, mirror
    finally:
        if mirror.owned:
            mirror.push_files()
