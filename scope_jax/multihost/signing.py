"""What the processes of a run tell each other is signed with the run's key, so that nobody else can take part.

The coordination service and the network of the devices take part without asking who talks to them. Every text that a
process puts into the service bears an HMAC-SHA256 under a key that only the processes of the run have, and names the
checksum of what then goes through the devices.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from scope_jax.errors import UserError

KEY = "SCOPE_JAX_RUN_KEY"  # the variable of the environment that has it; launch/run.py makes a new one for each launch
SHORTEST = 32  # characters of a key


def run_key() -> bytes:
    """The key of this run, from the environment. Raises ValueError if there is none, or a short one."""
    key = os.environ.get(KEY, "")
    if len(key) < SHORTEST:
        said = "is not set" if not key else f"has {len(key)} characters"
        raise UserError(
            f"The processes of a run recognise each other by a key, but {KEY} {said}; set it to the same random "
            f"characters for each of them, {SHORTEST} or more, as from openssl rand -hex 32."
        )
    return key.encode()


def signed(text: str, place: str, key: bytes) -> str:
    """`text` behind its code. place: what it is, and of whom; with another one the code is wrong."""
    return f"{_code(text, place, key)} {text}"


def verified(message: str, place: str, key: bytes) -> str | None:
    """The text of a message that `signed` made with the same place and key; None for any other."""
    code, _, text = message.partition(" ")
    right = hmac.compare_digest(code.encode(), _code(text, place, key).encode())
    return text if right else None


def checksum(payload: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def _code(text: str, place: str, key: bytes) -> str:
    content = f"{len(place)} {place} {text}".encode("utf-8", "surrogatepass")
    return hmac.new(key, content, hashlib.sha256).hexdigest()
