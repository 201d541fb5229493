"""Somebody who reaches a coordinator's port, for test_strangers.py: takes the place of process 1, and puts texts and
bytes under its keys.

python stranger.py PORT TEXTS BYTES: JSON objects by key, the bytes in hexadecimal
"""

from __future__ import annotations

import json
import os
import sys

from jax._src.lib import _jax


def main() -> None:
    client = _jax.get_distributed_runtime_client(f"localhost:{sys.argv[1]}", 1, init_timeout=60, use_compression=True)
    client.connect()
    for key, text in json.loads(sys.argv[2]).items():
        client.key_value_set(key, text, True)
    for key, content in json.loads(sys.argv[3]).items():
        client.key_value_set_bytes(key, bytes.fromhex(content), True)
    print("said", flush=True)
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    main()
