"""Cards that read from elsewhere, which is copied to local files first: data, corpora, models and prompts from object
storage, and models from the Hugging Face hub (data sets of the hub are read where they are used).

A card may name a model of the hub, as `Qwen/Qwen3-8B`, where it could name a folder. The files lie in the hub's own
cache (HF_HOME), with the hub's own settings: HF_TOKEN for models that ask for permission, HF_ENDPOINT for another
address, HF_HUB_OFFLINE=1 to use the cache without asking the hub.

Object storage is gs://bucket/path (Google Cloud Storage) and s3://bucket/path (S3 and compatible servers), through
tensorstore's key-value stores, with their own credentials and retries: those of the Google Cloud SDK or of the
machine's service account; AWS_ACCESS_KEY_ID and the other variables and files of the AWS SDKs. AWS_ENDPOINT_URL is the
address of an S3-compatible server; TENSORSTORE_GCS_HTTP_URL that of a fake of Google's.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import tensorstore as ts
from httpx2 import TransportError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.files import all_inside, is_partial, remove_stale, replaced
from scope_jax.models.encoders import sentence_files


def fetched(
    cfg: Config,
    tell: Callable[[str], None] | None = None,
    left: Collection[str] = (),
    missing: Callable[[str, FileNotFoundError], None] | None = None,
    only: Collection[str] = (),
) -> Config:
    """The card with local copies instead of its gs:// and s3:// paths and its models of the hub; the card itself if it
    has none.

    The copies lie in `train.spool` and in the hub's cache; what has not changed since it was copied is not read again.
    Each machine has its own. left: models of the hub that are left where they are. missing(name, error): is told of a
    model that the hub does not give, which then keeps its name; without it the error is raised. only: the tables of the
    card that are read, (): all. Raises FileNotFoundError for what does not exist and ConnectionError for storage that
    cannot be used.
    """
    places: dict[str, str] = {}

    def local(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: local(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(local, value))
        if not isinstance(value, str) or not is_object(value):
            return value
        if value not in places:
            if tell is not None:
                tell(f"fetching {value}")
            places[value] = str(fetch(value, Path(cfg.train.spool)).absolute())
        return places[value]

    table = cfg.model_dump()
    read = set(only or table)
    table |= {key: local(table[key]) for key in read}
    for section, key, weights in _models(table, read):
        name = section[key]
        if name is not None and name not in left and is_name(name):
            if tell is not None and name not in places:
                tell(f"looking for {name} on the hub; it is downloaded if it is not in the cache")
            try:
                places[name] = section[key] = str(snapshot(name, WHOLE if weights else SMALL))
            except FileNotFoundError as error:
                if missing is None:
                    raise
                missing(name, error)
    return type(cfg).model_validate(table) if places else cfg


def _models(table: dict[str, Any], read: Collection[str]) -> list[tuple[dict[str, Any], str, bool]]:
    """(table, key, whether its weights are read) of every place in the tables that are read that names a model's
    folder."""
    model, found = table["model"], []
    if "model" in read:
        found = [(model, "checkpoint", True), (model, "tokenizer", False)]
        found += [(model["policies"], name, True) for name in model["policies"]]
    if "teachers" in read:
        found += [(one, "checkpoint", True) for one in table["teachers"].values() if one["checkpoint"] is not None]
    names = [name for name in ("retrieval", "clusters") if name in read and table[name] is not None]
    return found + [(table[name]["encoder"], "checkpoint", True) for name in names]


# -------------------------------------------------------------------------------------------------------------- the hub
LOCAL = ("checkpoints", "models", "runs", "data", "assets")  # folders of cards, never taken for owners on the hub
NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[\w.-]+")
SMALL = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")  # config, tokenizer, template, index of the weights
SHAPE = ("config.json",)
WHOLE = (*SMALL, "*.safetensors")
MODULES = ("Pooling", "Dense", "Normalize")  # of an embedding model, each with a folder, as 1_Pooling
MODULE = ("config.json", "model.safetensors")  # what is in it


class Unavailable(FileNotFoundError):
    """The hub may have the model, but does not give it now, or not to this user."""


def is_name(path: str) -> bool:
    """True for `owner/name` where no folder `owner` exists, and `owner` is no usual name of one (LOCAL)."""
    owner = Path(path).parent
    return bool(NAME.fullmatch(path)) and not owner.exists() and str(owner) not in LOCAL


def snapshot(name: str, files: Sequence[str] = WHOLE) -> Path:
    """The folder with a model's files in the hub's cache, downloaded if they are not there. files: WHOLE, SMALL, SHAPE.

    WHOLE includes the modules after the transformer that an embedding model's modules.json lists; of other folders
    inside the model's nothing is downloaded.

    Raises FileNotFoundError for a model that does not exist, Unavailable for one that this user may not read, or that
    is neither in the cache nor to be had without network.
    """
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(files), ignore_patterns=["*/*"]))
        listed = sentence_files.listed(folder) or [] if files == WHOLE else []
        places = [glob.escape(place) for kind, place in listed if kind in MODULES and place]
        if places:
            inside = [f"{place}/{file}" for place in places for file in MODULE]
            snapshot_download(name, revision=folder.name, allow_patterns=inside)
        return folder
    except GatedRepoError:
        wrong = f"asks for permission: accept its terms on {name}'s page of the hub, and set HF_TOKEN"
    except RepositoryNotFoundError:
        raise FileNotFoundError(
            f"the model {name} is neither a folder here nor a model of the hub; correct the name, or set HF_TOKEN if "
            "it is private."
        ) from None
    except (LocalEntryNotFoundError, TransportError):
        wrong = "is neither a folder here nor in the hub's cache, and the hub cannot be reached; give a folder"
    except HfHubHTTPError as error:
        wrong = f"cannot be downloaded: the hub answers {error.response.status_code}; try again later, or give a folder"
    raise Unavailable(f"the model {name} {wrong}.")


# ------------------------------------------------------------------------------------------------------- object storage
T = TypeVar("T")

_URL = re.compile(r"(gs|s3)://([^/]+)(?:/(.*))?")
THREADS = 4  # objects that are transferred, and held in host memory, at the same time
RETRIES = {"max_retries": 6, "initial_delay": "500ms", "max_delay": "16s"}  # half a minute or so
CONTEXT = {"gcs_request_retries": RETRIES, "s3_request_retries": RETRIES}


def is_object(path: str | Path) -> bool:
    """True for a path on object storage."""
    return str(path).startswith(("gs://", "s3://"))


def _spec(url: str) -> dict[str, Any]:
    match = _URL.fullmatch(url)
    if match is None:
        raise UserError(f"{url} is not a path on object storage; give gs://bucket/path or s3://bucket/path.")
    scheme, bucket, path = match[1], match[2], (match[3] or "").strip("/")
    spec: dict[str, Any] = {"driver": {"gs": "gcs", "s3": "s3"}[scheme], "bucket": bucket, "context": CONTEXT}
    if path:
        spec["path"] = path
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if scheme == "s3" and endpoint:
        spec["endpoint"] = endpoint
        spec["aws_region"] = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return spec


class Store:
    """The objects under a path, by their names below it: "config.toml", "checkpoints/10/seal.json".

    Raises ConnectionError, with one sentence, if the storage cannot be reached or refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        spec = _spec(self.url)
        self._file = self._asked(lambda: ts.KvStore.open(spec).result())
        folder = spec | ({"path": spec["path"] + "/"} if "path" in spec else {})
        self._objects = self._asked(lambda: ts.KvStore.open(folder).result())

    def _asked(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (ValueError, RuntimeError, NotImplementedError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConnectionError(
                f"{self.url} cannot be used ({reason}); check the path and your access to it."
            ) from None

    def names(self, below: str = "") -> list[str]:
        """The names of the objects that begin with `below`, sorted, as they are there: they may be no names of files.

        Without those that end with a slash, with which consoles show an empty folder.
        """
        past = below[:-1] + chr(ord(below[-1]) + 1) if below else ""
        keys = self._asked(lambda: self._objects.list(ts.KvStore.KeyRange(below, past)).result())
        names = [key.decode(errors="backslashreplace") for key in keys]
        return sorted(name for name in names if name and not name.endswith("/"))

    def is_file(self) -> bool:
        """True if the path itself is an object."""
        above, _, name = self.url.rpartition("/")
        return not above.endswith("/") and name in Store(above).names(name)

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none."""
        found = self._read(name, None)
        return found.value if found.state == "value" else None

    def _read(self, name: str, known: bytes | None) -> Any:
        """ "" is the object at the path itself. known: a version that is not read again."""
        store = self._objects if name else self._file
        return self._asked(lambda: store.read(name, if_not_equal=known).result())

    def write(self, name: str, content: bytes) -> None:
        """Writes an object; others see it whole or not at all."""
        self._asked(lambda: self._objects.write(name, content).result())

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects; those that do not exist count as deleted."""
        self._each(lambda name: self._asked(lambda: self._objects.write(name, None).result()), names)

    def upload(self, files: Iterable[tuple[Path, str]]) -> None:
        """Writes files as objects: (file, name) each."""
        self._each(lambda pair: self.write(pair[1], pair[0].read_bytes()), files)

    def download(self, files: Mapping[str, Path], known: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
        """Writes objects to files, by name ("": the object at the path itself); returns the version of each.

        The paths of names that `names` gave come from `files.all_inside`. known: the versions of files that
        are there already and are not downloaded again.
        """
        past = known or {}

        def load(name: str) -> tuple[str, bytes]:
            path = files[name]
            found = self._read(name, past.get(name) if path.is_file() else None)
            if found.state == "missing":
                raise FileNotFoundError(f"{self.url}/{name} was deleted while it was read; run the command again.")
            if found.state == "value":
                with replaced(path) as partial:
                    partial.write_bytes(found.value)
            return name, found.stamp.generation

        return dict(self._each(load, files))

    @staticmethod
    def _each(work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="objects") as pool:
            return list(pool.map(work, items))


def fetch(url: str, cache: Path) -> Path:
    """The local copy of an object, or of a folder of objects, in <cache>/data; what has not changed stays as it is.

    Raises FileNotFoundError if there is no such object, FileNameError for objects that cannot be files of a folder.
    """
    store = Store(url)
    place = local_place(url, cache / "data")
    files = {"": place} if store.is_file() else all_inside(place, store.names(), url)
    if not files:
        raise FileNotFoundError(f"{url} does not exist; correct the path, or upload it.")
    record = cache / "versions" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
    _make_room(place, files.values())
    versions = store.download(files, _versions(record))
    with replaced(record) as partial:
        partial.write_text(json.dumps({name: version.hex() for name, version in versions.items()}), "utf-8")
    return place


def _make_room(place: Path, files: Collection[Path]) -> None:
    """Removes from an earlier copy what was deleted there, and folders where there is a file now, or the reverse."""
    above = [folder for folder in place.parents if folder.is_file()]
    wanted = set(files)
    gone = [path for path in place.rglob("*") if path.is_file() and path not in wanted and not is_partial(path)]
    for path in (*above, *gone, *([place] if place.is_file() and place not in wanted else [])):
        path.unlink(missing_ok=True)
    for path in files:
        if path.is_dir():
            shutil.rmtree(path)
    for folder in {path.parent for path in files}:
        remove_stale(folder)


def _versions(record: Path) -> dict[str, bytes]:
    """The versions of the objects of an earlier copy, {} if there is none or they are not readable."""
    try:
        return {name: bytes.fromhex(version) for name, version in json.loads(record.read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def local_place(url: str, cache: Path) -> Path:
    """Where the local copy of a path on object storage lies."""
    scheme, _, path = url.partition("://")
    if any(part in ("", ".", "..") for part in path.strip("/").split("/")):
        raise UserError(f"{url} has an empty part, . or .. in its path; correct it.")
    return cache / scheme / path.strip("/")
