"""Kernels, bytes, temporaries, waits and collectives of compiled programs, ahead of time.

    python -m benchmarks.programs [--only TEXT …] [--check]

Compiles decoding (a token of 64 slots of up to 640 tokens), computing of prompts (512 tokens) and an update (8 rows of
1,024) of models' first layers, for one H100 and chips of v5e, v5p and v6e, and an update for eight H100; nothing is
run. Cases whose compiler is not installed (libtpu, jax[cuda12]) are left out. GPU programs are compiled without
autotuning, so that the choice of a product's kernel is not the device's. Prints a table and records the figures in
benchmarks/programs/programs.json under the version of jaxlib; with --check it records nothing and fails if one has
risen.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from scope_jax.plan.hardware import ABSENT

os.environ |= ABSENT

from benchmarks.programs.cases import CASES, counted, keep, kept, risen, table


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="cases with one of these texts only")
    options.add_argument("--check", action="store_true", help="compare with what is recorded")
    given = options.parse_args()
    before, found, worse = kept(), {}, []
    for case in CASES:
        if not case.compiles or not any(text in case.name for text in given.only):
            continue
        began = time.monotonic()
        found[case.name] = counted(case)
        print(f"{case.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if given.check and case.name in before:
            worse += [f"{case.name}, {line}" for line in risen(before[case.name], found[case.name])]
        elif not given.check:
            keep(found)
    print(table(found))
    print("\n".join(worse), file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
