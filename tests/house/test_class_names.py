"""A class is called by its name alone, in sentences and tracebacks: no two of them share one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_class_name_stands_twice() -> None:
    names: Counter[str] = Counter()
    for folder in ("scope_jax", "models", "rollouts", "retrieval", "sharding"):
        for path in (ROOT / folder).rglob("*.py"):
            if not any(place.is_symlink() for place in (path, *path.parents)):
                names.update(re.findall(r"^ *class (\w+)[(:]", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(names) > 500
    assert sorted(name for name, count in names.items() if count > 1) == []
