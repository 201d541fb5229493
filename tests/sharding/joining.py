"""A process of a run for test_strangers.py: joins, reads a JSON object of texts and puts them, unsigned, under its keys
as a stranger would; reads a line, tells the others its number, and prints what all told.

python joining.py [SECONDS TO WAIT], with the place and key in the environment
"""

from __future__ import annotations

import json
import sys

from scope_jax.multihost import distributed
from scope_jax.run.processes import joined, together


def main() -> None:
    for seconds in sys.argv[1:]:
        distributed.JOIN = int(seconds)
    with joined():
        print("joined", flush=True)
        for key, text in json.loads(sys.stdin.readline() or "{}").items():
            distributed.client().key_value_set(key, text, True)
        sys.stdin.readline()
        print(together(lambda: distributed.index()), flush=True)


if __name__ == "__main__":
    from scope_jax.errors import is_users, sentence
    from scope_jax.run.processes import leave

    try:
        main()
    except Exception as error:
        if not is_users(error):
            raise
        print(f"scope-jax: {sentence(error)}", file=sys.stderr)
        leave(SystemExit(2))
        sys.exit(2)
