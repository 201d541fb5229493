"""The files that a run reads, with their checksums: <run>/inputs.json.

    {"data.answers": {"path": "data/answers.jsonl", "bytes": 52312, "sha256": "9f86d0…", "seen": [mtime, ctime, inode]},
     "sum": "5f1d08c2"}

The card and the seed determine a run only if the files are the same, too. So a run that goes on compares them and names
the ones that have changed. By key of the card, and file in a folder: data, prompts, corpora, what describes a model
(config.json, tokenizer, template; the weights of a run are in its checkpoints), the passages and encoder of a given
index (whose vectors follow from them), the Python files of a game, and those that a reward function imports from its
folder. Data sets of the hub are not files.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.config.base import PACKAGE, paths
from scope_jax.files import replaced
from scope_jax.games import GAMES
from scope_jax.run.config_file import flattened, is_free
from scope_jax.run.files import RunError, read_json, write_json
from scope_jax.run.folder import begun
from scope_jax.run.lines import DamagedFile

PARTS = ("", "models", "rollouts", "retrieval", "sharding")
OURS = tuple((PACKAGE / part).resolve() for part in PARTS)  # some are links
NAME = "inputs.json"
THREADS = 8  # files that are read at the same time; hashing does not hold Python's lock
SETTLED = 2 * 10**9  # nanoseconds after a change during which another one may leave a file's times the same
MUCH = 4 << 30  # bytes of which the user is told that they are read
DESCRIPTION = (".json", ".txt", ".model", ".jinja", ".tiktoken")  # what a model's folder has besides weights
INDEX, GAME = "retrieval.index", "system"  # whose files may appear later: an index is built, a module imported
TOOL = "the tool"

Entry = dict[str, Any]
KINDS = {"path": str, "bytes": int, "sha256": str}  # what every entry has


@dataclass(frozen=True)
class _File:
    """An input: its path as the card gives it, and where it is here."""

    shown: str
    place: Path


class Inputs:
    """The inputs of one run. card: as in its folder; here: the card with local copies of what lies elsewhere."""

    def __init__(self, run: Path, card: Config, here: Config) -> None:
        self._run, self._card, self._here = run, card, here
        self._known: dict[str, Entry] | None = None  # read when it is first compared, by the process that does

    def check(
        self, accept: bool, tell: Callable[[str], None], tools: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Compares the files with those of the run so far, and records them. accept: also those that have changed.
        tools: the schemas of the game's tools by name, which are compared like files.

        Raises RunError, which names them, if some have. To be called again once the index is built, the game is
        imported and its tools are known.
        """
        if self._known is None:
            self._known = _read(self._run / NAME) if begun(self._run) else {}
            if begun(self._run) and not self._known:
                tell(f"{self._run / NAME} is not there: the files of this run are not compared with the earlier ones")
        files = dict(_files(self._card, self._here))
        found = _entries(files, self._known, tell) | _schemas(tools or {})
        changed = _changed(self._known, found)
        if changed and not accept:
            raise RunError(
                f"the run in {self._run} was started with other contents of {', '.join(changed[:5])}"
                + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
                + "; put the earlier files back, use another run folder, or go on with these by --accept-inputs."
            )
        if changed:
            tell(f"going on with other contents of {', '.join(changed)}")
        for name, entry in found.items():
            before = self._known.get(name, {})
            past = [*before.get("earlier", []), *([before["sha256"]] if _differs(before, entry) else [])]
            found[name] = entry | ({"earlier": past} if past else {})
        later = {name: entry for name, entry in self._known.items() if name not in found and _may_appear(name)}
        self._known = dict(sorted((later | found).items()))
        with replaced(self._run / NAME) as partial:
            write_json(partial, self._known)


def _may_appear(name: str) -> bool:
    return name.startswith((f"{INDEX}/", f"{GAME}/", f"{TOOL} "))


def _differs(before: Entry, now: Entry) -> bool:
    return bool(before) and (before["bytes"], before["sha256"]) != (now["bytes"], now["sha256"])


def _changed(known: Mapping[str, Entry], found: Mapping[str, Entry]) -> list[str]:
    """Which inputs are not as they were, "key (path)"; a folder may also have lost or gained one."""
    names = [name for name, entry in found.items() if _differs(known.get(name, {}), entry)]
    names += [name for name in known.keys() - found.keys() if not _may_appear(name)]
    folders = {name.partition("/")[0] for name in known if "/" in name}
    names += [
        name for name in found.keys() - known.keys() if name.partition("/")[0] in folders and not _may_appear(name)
    ]
    return [f"{name} ({(found.get(name) or known[name])['path']})" for name in sorted(names)]


# ----------------------------------------------------------------------------------------------------------- which ones
def _files(card: Config, here: Config) -> Iterator[tuple[str, _File]]:
    """(name, file) of every input that is here. Names are keys of the card, with the file if the key names a folder."""
    for (key, shown), (_, local) in zip(paths(card), paths(here), strict=True):
        unread = key.startswith("clusters.") or key == "train.origin"
        if not unread and not is_free(card, key):
            yield from _at(key, shown, Path(local), card)
    if card.system not in GAMES:
        yield from _options(card)
        yield from _modules(Path(card.system))


def _options(card: Config) -> Iterator[tuple[str, _File]]:
    """The options of a game in a file that are files, though their type may not say so."""
    table = getattr(card, card.game_table)
    known = {key for key, _ in paths(table)}
    for key, value in flattened(table.model_dump(mode="json")).items():
        if key not in known and isinstance(value, str) and value and "\0" not in value and Path(value).is_file():
            yield f"{card.game_table}.{key}", _File(value, Path(value))


def _at(key: str, shown: str, place: Path, card: Config) -> Iterator[tuple[str, _File]]:
    if place.is_file():
        yield key, _File(shown, place)
        if place.suffix == ".py" and key != GAME:
            for path in _imported(place):
                name = path.relative_to(place.resolve().parent).as_posix()
                yield f"{key}/{name}", _File(str(Path(shown).parent / name), path)
        return
    if not place.is_dir():  # the name of a data set on the hub, or what the run itself will miss
        return
    files: list[Path] = []
    if key == INDEX:
        patterns = ["corpus/*.arrow", "embedder.npz"]
        if card.retrieval is not None and card.retrieval.kind == "scann":
            patterns.append("scann/*")
        files = [path for pattern in patterns for path in place.glob(pattern)]
    elif key.rpartition(".")[2] in ("checkpoint", "tokenizer") or ".policies." in key:
        files = [path for pattern in ("*", "*/*") for path in place.glob(pattern) if path.suffix in DESCRIPTION]
    else:
        files = list(place.rglob("*"))
    for path in sorted(files):
        name = path.relative_to(place).as_posix()
        if path.is_file() and not f"/{name}".count("/.") and not name.endswith("~"):  # none of an editor's
            yield f"{key}/{name}", _File(f"{shown.rstrip('/')}/{name}", path)


def _imported(file: Path) -> list[Path]:
    """The Python files that a file imports from its own folder, and those that these import, by their text: it is run
    in another process."""
    above = file.resolve().parent
    found = [file.resolve()]
    for text in found:  # grows
        try:
            nodes = list(ast.walk(ast.parse(text.read_bytes())))
        except (SyntaxError, ValueError):  # whoever runs it is told
            continue
        wanted = [(above, name.name) for node in nodes if isinstance(node, ast.Import) for name in node.names]
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                base = text.parents[node.level - 1] if node.level else above
                wanted += [(base, f"{node.module or ''}.{name.name}".strip(".")) for name in node.names]
        for base, module in wanted:
            parts = module.split(".")
            for count in range(1, len(parts) + 1):
                place = base.joinpath(*parts[:count])
                there = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
                found += [path for path in there if path not in found and path.is_relative_to(above)]
    return sorted(found[1:])


def _modules(game: Path) -> Iterator[tuple[str, _File]]:
    """The Python files beside a game's file, or in folders there, that have been imported so far."""
    above = game.resolve().parent
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        place = Path(file).resolve() if isinstance(file, str) else above
        inside = place.is_file() and place.is_relative_to(above) and place != game.resolve()
        if inside and "site-packages" not in place.parts and not any(map(place.is_relative_to, OURS)):
            name = place.relative_to(above).as_posix()
            yield f"{GAME}/{name}", _File(str(game.parent / name), place)


# -------------------------------------------------------------------------------------------------------------- hashing
def _entries(files: Mapping[str, _File], known: Mapping[str, Entry], tell: Callable[[str], None]) -> dict[str, Entry]:
    """The entries of the files. One that has the size, times and inode of a known entry is not read again."""
    entries: dict[str, Entry] = {}
    unread: dict[Path, list[str]] = {}
    for name, file in files.items():
        entry = {"path": file.shown, "bytes": file.place.stat().st_size, "seen": _seen(file.place)}
        before = known.get(name, {})
        if before.get("seen") == entry["seen"] and before.get("bytes") == entry["bytes"]:
            entries[name] = entry | {"sha256": before["sha256"]}
        else:
            entries[name] = entry
            unread.setdefault(file.place, []).append(name)
    size = sum(path.stat().st_size for path in unread)
    if size > MUCH:
        tell(f"reading {size / 2**30:.0f} GiB of data for their checksums; they are read again only if they change")
    taken = time.time_ns()
    with ThreadPoolExecutor(THREADS, "inputs") as pool:
        for names, digest in zip(unread.values(), pool.map(_sha256, unread), strict=True):
            for name in names:
                settled = max(entries[name]["seen"][:2]) < taken - SETTLED
                entries[name] |= {"sha256": digest} | ({} if settled else {"seen": None})
    return entries


def _schemas(tools: Mapping[str, Mapping[str, Any]]) -> dict[str, Entry]:
    """Entries of tools, by their schemas."""
    texts = {name: json.dumps(schema, sort_keys=True).encode() for name, schema in tools.items()}
    return {
        f"{TOOL} {name}": {
            "path": "its schema",
            "bytes": len(text),
            "sha256": hashlib.sha256(text).hexdigest(),
            "seen": None,
        }
        for name, text in texts.items()
    }


def _seen(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Entry]:
    """The recorded inputs, {} of a run that has recorded none. Raises DamagedFile."""
    remedy = "remove it to go on without comparing the run's data with those it began with"
    entries = read_json(path, remedy) if path.is_file() else {}
    tables = entries.values() if isinstance(entries, dict) else [None]
    if not all(
        isinstance(entry, dict) and all(isinstance(entry.get(k), t) for k, t in KINDS.items()) for entry in tables
    ):
        raise DamagedFile(f"{path} is damaged; {remedy}.")
    return entries
