"""Draws mutants over all layers, by their number of statements."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

from tools.mutants.changes import KINDS
from tools.mutants.source import Mutant, find_in, layer, mutants, replaced, sources

LEAST = 8  # mutants of a layer, however small it is
NO_LAYER = ("__init__", "__main__", "version")


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """`count` mutants, the same for a seed and a checkout; one at most for a line, and the kinds in turn."""
    texts: dict[str, dict[str, str]] = {}
    for path in sources(root):
        file = str(path.relative_to(root))
        if layer(file) not in NO_LAYER:
            texts.setdefault(layer(file), {})[file] = path.read_text(encoding="utf-8")
    statements = {name: sum(map(_statements, files.values())) for name, files in texts.items()}
    result: list[Mutant] = []
    for name, number in sorted(shares(statements, count).items()):
        result += _draw_layer(texts[name], number, Random(f"{seed} {name}"))
    return result


def shares(statements: Mapping[str, int], count: int) -> dict[str, int]:
    """How many mutants each layer gets: LEAST, or more in proportion to its statements; the sum is `count`."""
    small: set[str] = set()
    while True:
        left = count - LEAST * len(small)
        rest = {name: number for name, number in statements.items() if name not in small}
        exact = {name: left * number / sum(rest.values()) for name, number in rest.items()}
        smaller = {name for name, share in exact.items() if share < LEAST}
        if not smaller:
            break
        small |= smaller
    result = {name: int(share) for name, share in exact.items()} | dict.fromkeys(small, LEAST)
    by_remainder = sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder[: count - sum(result.values())]:
        result[name] += 1
    return result


def _statements(text: str) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))


def _draw_layer(texts: Mapping[str, str], count: int, random: Random) -> list[Mutant]:
    """Kinds in turn, and of a kind any change in any file; fewer than `count` if there are no more."""
    candidates = [mutant for file, text in sorted(texts.items()) for mutant in mutants(file, text)]
    random.shuffle(candidates)
    waiting = {kind: [mutant for mutant in candidates if mutant.kind == kind] for kind in KINDS}
    result: list[Mutant] = []
    lines: Counter[tuple[str, int]] = Counter()
    while len(result) < count and any(waiting.values()):
        for kind in KINDS:
            while waiting[kind] and len(result) < count:
                mutant = waiting[kind].pop()
                if not lines[mutant.file, mutant.line] and _runs(texts[mutant.file], mutant):
                    lines[mutant.file, mutant.line] += 1
                    result.append(mutant)
                    break
    return sorted(result, key=lambda mutant: (mutant.file, mutant.line))


def _runs(text: str, mutant: Mutant) -> bool:
    """The mutant is another program, and one that can be read."""
    node = find_in(text, mutant)
    assert node is not None
    try:
        changed = ast.parse(replaced(text, node, mutant.after))
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(text))
