"""JAX's coordination service in a process of its own.

    python -m scope_jax.multihost.coordinator HOST:PORT PROCESSES HEARTBEAT

Process 0 starts it. JAX would run the service inside process 0 and, when that dies, end all others with a C++ stack
trace. Here the service outlives process 0 for a while, so that the others find out from `multihost.watch` and say so in
one sentence.

It listens at that address only. It prints one line: "ready", or why the address cannot be opened. It ends LINGER
seconds after its standard input does, with which it notices the end of process 0.
"""

from __future__ import annotations

import os
import sys
import time

from scope_jax.multihost import runtime

LINGER = 40.0  # seconds; longer than `multihost.watch` needs to notice that process 0 is gone


def main() -> None:
    address, processes, heartbeat = sys.argv[1], *map(int, sys.argv[2:])
    try:
        service = runtime.service(address, processes, heartbeat)
    except RuntimeError as error:
        print(" ".join(str(error).split()), flush=True)
        return
    print("ready", flush=True)
    finished = sys.stdin.read()  # "finished": all processes have come to their end
    time.sleep(5.0 if finished else LINGER)
    del service
    os._exit(0)


if __name__ == "__main__":
    main()
