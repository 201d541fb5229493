"""Object storage: gs://bucket/path (Google Cloud Storage) and s3://bucket/path (S3 and compatible servers).

Through tensorstore's key-value stores, with their own credentials and retries: those of the Google Cloud SDK or of the
machine's service account; AWS_ACCESS_KEY_ID and the other variables and files of the AWS SDKs. AWS_ENDPOINT_URL is the
address of an S3-compatible server; TENSORSTORE_GCS_HTTP_URL that of a fake of Google's.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import tensorstore as ts

from scope_jax.errors import writing

T = TypeVar("T")

_URL = re.compile(r"(gs|s3)://([^/]+)(?:/(.*))?")
PARTIAL = ".partial"  # suffix of files that this or another process is writing
THREADS = 4  # objects that are transferred, and held in host memory, at the same time
RETRIES = {"max_retries": 6, "initial_delay": "500ms", "max_delay": "16s"}  # half a minute or so
CONTEXT = {"gcs_request_retries": RETRIES, "s3_request_retries": RETRIES}


def is_object(path: str | Path) -> bool:
    """True for a path on object storage."""
    return str(path).startswith(("gs://", "s3://"))


def _spec(url: str) -> dict[str, Any]:
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url} is not a path on object storage; give gs://bucket/path or s3://bucket/path.")
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
        """The names of the objects that begin with `below`, sorted."""
        past = below[:-1] + chr(ord(below[-1]) + 1) if below else ""
        keys = self._asked(lambda: self._objects.list(ts.KvStore.KeyRange(below, past)).result())
        return sorted(key.decode() for key in keys)

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

        known: the versions of files that are there already and are not downloaded again.
        """
        past = known or {}

        def load(name: str) -> tuple[str, bytes]:
            path = files[name]
            found = self._read(name, past.get(name) if path.is_file() else None)
            if found.state == "missing":
                raise FileNotFoundError(f"{self.url}/{name} was deleted while it was read; run the command again.")
            if found.state == "value":
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = _partial(path)
                with writing(path):
                    partial.write_bytes(found.value)
                os.replace(partial, path)
            return name, found.stamp.generation

        return dict(self._each(load, files))

    @staticmethod
    def _each(work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="objects") as pool:
            return list(pool.map(work, items))


def fetch(url: str, cache: Path) -> Path:
    """The local copy of an object, or of a folder of objects, in <cache>/data; what has not changed stays as it is.

    Raises FileNotFoundError if there is no such object.
    """
    store = Store(url)
    place = local_place(url, cache / "data")
    if store.is_file():
        files = {"": place}
    else:
        files = {name: place / name for name in store.names() if not name.endswith("/")}
    if not files:
        raise FileNotFoundError(f"{url} does not exist; correct the path, or upload it.")
    record = place.with_name(place.name + ".versions.json")
    known = json.loads(record.read_text("utf-8")) if record.is_file() else {}
    versions = store.download(files, {name: bytes.fromhex(version) for name, version in known.items()})
    for path in [path for path in place.rglob("*") if path.is_file() and path not in files.values()]:
        if path.suffix != PARTIAL:
            path.unlink(missing_ok=True)  # it was deleted there
    partial = _partial(record)
    partial.write_text(json.dumps({name: version.hex() for name, version in versions.items()}), "utf-8")
    os.replace(partial, record)
    return place


def _partial(path: Path) -> Path:
    """Where a file is written before it gets its name. Other processes may write the same one, also on other hosts that
    share the folder, where process ids may be equal."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")


def local_place(url: str, cache: Path) -> Path:
    """Where the local copy of a path on object storage lies."""
    scheme, _, path = url.partition("://")
    if any(part in ("", ".", "..") for part in path.strip("/").split("/")):
        raise ValueError(f"{url} has an empty part, . or .. in its path; correct it.")
    return cache / scheme / path.strip("/")
