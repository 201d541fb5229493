"""Names of metrics, for games that list those that a step may have.

A step has those for which it has a value: a mean of nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

LENGTHS = "response_tokens response_length cut_off prompt_too_long"  # of `play.searching.lengths`
JUDGE = ("asked", "retried", "malformed", "refused")


def rejections(reasons: Iterable[str]) -> str:
    """The names of the shares of episodes that were rejected for these reasons."""
    return " ".join(f"rejected_{reason}" for reason in reasons)


def of(families: Mapping[str, str | Iterable[str]]) -> Iterator[str]:
    """`family/name` for the names of each family, in one string or several."""
    for family, names in families.items():
        for name in names.split() if isinstance(names, str) else names:
            yield f"{family}/{name}"
