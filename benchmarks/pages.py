"""What the host pays for pages of a full pool.

    python -m benchmarks.pages [--pages 1000 10000 43690 400000]

Every page of a pool holds a prompt that nobody uses any more. Prints the microseconds of `take(1)`, which gives the
oldest one away, and of `available()`: the lowest mean of 5 runs of 200 calls.

`take(1)` takes 1.0 µs with 1,000 pages, 2.5 with 43,690 and 4.9 with 400,000.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Sequence

from scope_jax.rollouts.pages import Pool


def full(count: int) -> Pool:
    """A pool of `count` pages, each in the index and in no row."""
    pool = Pool(0, count + 1)
    for number in range(count):
        pages = pool.take(1)
        pool.enter(0, number.to_bytes(4, "big"), pages)
        pool.drop(pages)
    return pool


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", nargs="+", type=int, default=[1_000, 10_000, 43_690, 400_000])
    for count in parser.parse_args(given).pages:
        pool = full(count)
        take, available = (
            min(timeit.repeat(call, number=200, repeat=min(5, count // 200))) / 200 * 1e6
            for call in (lambda pool=pool: pool.take(1), pool.available)
        )
        print(f"{count:>8,} pages: take(1) {take:8.1f} µs, available() {available:8.1f} µs")


if __name__ == "__main__":
    main()
