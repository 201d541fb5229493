"""What strangers put into folders, buckets, names and networks.

Where tests try an attack, a row runs them and counts. The folder is empty.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.models.hostile_files import CASES
from tests.sharding.test_files import BAD
from tests.torture.audited import VARIABLE
from tests.torture.lives import CONTEXT
from tests.torture.table import Tried
from tests.train import runs
from tests.train.buckets import Buckets

LIMIT = 1800  # seconds for the tests of a row
Counts = Counter[str]  # "tests", of them "noted" with properties, their sums, and "outside" (files written there)


def tested(folder: Path, *words: str) -> Counts:
    """Runs tests in a process of their own; all must pass. words: paths under tests/ and options of pytest."""
    report, outside = folder / "report.xml", folder / "outside.txt"
    files = [word if word.startswith("-") or not word.endswith(".py") else f"tests/{word}" for word in words]
    options = [f"--basetemp={folder / 'tests'}", f"--junitxml={report}", "-p", "tests.torture.audited"]
    own = {VARIABLE: str(outside), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(runs.ROOT)}
    for place in ("HF_HOME", "MPLCONFIGDIR", "TMPDIR"):  # where libraries write
        own[place] = str(folder / "places" / place)
        Path(own[place]).mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", *options, *files],
        cwd=runs.ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    counts = Counts(outside=len(elsewhere := outside.read_text(encoding="utf-8").splitlines()))
    for case in ElementTree.parse(report).iter("testcase"):
        counts["tests"] += case.find("skipped") is None
        counts["noted"] += case.find("properties") is not None
        for found in case.iter("property"):
            counts[found.get("name", "")] += int(found.get("value", ""))
    assert not elsewhere, elsewhere
    return counts


def code(folder: Path) -> Tried:
    counts = tested(folder, "house/test_no_code.py")
    assert counts["planted"] > 1000 and counts["ran"] == 0, counts
    return Tried(counts["planted"], f"files with code, read in {counts['noted']} ways; code that ran: {counts['ran']}")


def _asked(buckets: dict[str, str], urls: list[str], spool: Path, told: Any) -> None:
    """Copies data and a run from a bucket; tells how it was refused."""
    os.environ |= buckets
    from scope_jax.run.fetching import fetch
    from scope_jax.run.mirror import Mirror

    said = []
    for number, url in enumerate(urls):
        ways = (fetch, lambda url, place: Mirror(url, place).pull(said.append))
        for way in ways:
            try:
                way(url, spool / str(number))
            except (ValueError, OSError) as error:
                said.append(str(error))
            else:
                said.append("")
    told.put(said)


def objects(folder: Path) -> Tried:
    """Names of objects, which whoever may write to a bucket chooses."""
    spool = folder / "a" / "b" / "c" / "spool"
    absolute = str(folder / "absolute")
    names = [absolute if name.startswith("/") else name for name in BAD if isinstance(name, str) and _sent(name)]
    names += ["../" * depth + "escape" for depth in range(1, 9)] + ["a/../../b", "x/" + absolute, "%2e%2e/%2e%2e/../x"]
    with Buckets() as server:
        urls = [f"{scheme}://bucket/{number}" for number in range(len(names)) for scheme in ("gs", "s3")]
        for number, name in enumerate(names):
            for each, content in (("config.toml", b""), (name, b"written by a stranger")):
                server.objects["bucket", f"{number}/{each}"] = (content, 1)
        told = CONTEXT.Queue()
        asking = CONTEXT.Process(target=_asked, args=(server.environment | {"HOME": str(folder)}, urls, spool, told))
        asking.start()
        said = told.get(timeout=LIMIT)
        asking.join()
        server.shutdown()
    outside = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(spool)]
    assert not outside and len(said) == 2 * len(urls), (outside, len(said))
    assert all(sentence and "\n" not in sentence for sentence in said), said
    assert not [path for path in spool.rglob("*") if path.is_file() and path.name != "config.toml" and _stranger(path)]
    return Tried(len(said), f"names of objects, refused in one message each; files written outside: {len(outside)}")


def _sent(name: str) -> bool:
    """True for a name that a listing can hold, and that is none of an empty folder."""
    return bool(name) and not name.endswith("/") and name.isascii()


def _stranger(path: Path) -> bool:
    return path.read_bytes() == b"written by a stranger"


def names(folder: Path) -> Tried:
    bad = "-k=no_file or no_link or cannot_be_together or in_its_folder"
    counts = tested(folder, "sharding/test_files.py", "retrieval/test_names_in_indexes.py", bad)
    return Tried(counts["tests"], f"in indexes, seals and tokenizers; files written outside: {counts['outside']}")


def hosts(folder: Path) -> Tried:
    counts = tested(folder, "launch/test_names.py", "-k=nothing_but_a_host or is_an_option")
    return Tried(counts["tests"], "hosts and names of a launch that would be options or commands: refused")


def strangers(folder: Path) -> Tried:
    counts = tested(folder, "sharding/test_strangers.py")
    return Tried(
        counts["tests"],
        "tests of no key, another key, pickles and texts of a stranger: nothing of theirs runs or is shown",
    )


def small_files(folder: Path) -> Tried:
    tested(folder, "models/test_hostile.py")
    return Tried(len(CASES), "small files that claim much: one message each, within 2 s and 1 GiB")


def attacks() -> dict[str, Callable[[Path], Tried]]:
    """Every row by its name in the table."""
    return {
        "code in models, adapters, encoders, indexes, checkpoints, data sets, templates": code,
        "objects of a bucket whose names leave the folder": objects,
        "names that leave the folder, in files": names,
        "host names that are options": hosts,
        "strangers at the coordinator's port": strangers,
        "small files that claim much": small_files,
    }
