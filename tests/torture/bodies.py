"""The worst bodies of at most a mebibyte for `serve`: what each step of reading a request takes longest for."""

from __future__ import annotations

import json
from random import Random

MEBIBYTE = 1 << 20
PATHS = {"prompt": "/v1/completions", "messages": "/v1/chat/completions"}


def _filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    """As many units as fit."""
    return head + unit * ((MEBIBYTE - len(head) - len(tail)) // len(unit)) + tail


def _words(seed: int) -> str:
    """Text that no cache of words has seen."""
    draw = Random(seed)
    return " ".join(
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyzé日", k=draw.randint(1, 12))) for _ in range(120_000)
    )


def worst(model: str) -> dict[str, tuple[str, bytes]]:
    """(path, body) by name."""
    begins = {name: f'{{"model":"{model}","max_tokens":2,"{name}":'.encode() for name in PATHS}

    def prompt(value: bytes) -> tuple[str, bytes]:
        return PATHS["prompt"], value

    def chat(value: bytes) -> tuple[str, bytes]:
        return PATHS["messages"], value

    p, m = begins["prompt"], begins["messages"]
    said = m + b'[{"role":"user","content":'
    one = b'{"role":"user","content":"' + b"xy" * 120 + b'"},'
    text = _words(1).encode()[: MEBIBYTE - 200].decode(errors="ignore")
    return {
        "floats where ids are due": prompt(_filled(p + b"[", b"1.5,", b"1]}")),
        "objects where messages are due": chat(_filled(m + b"[", b"{},", b"{}]}")),
        "16,000 objects where messages are due": chat(m + b"[" + b"{}," * 16_000 + b"{}]}"),
        "many messages": chat(_filled(m + b"[", one, one[:-1] + b"]}")),
        "names of special tokens": chat(_filled(said + b'"', b"<|im_end|>", b'"}]}')),
        "one letter": prompt(_filled(p + b'"', b"a", b'"}')),
        "spaces": prompt(_filled(p + b'"', b" ", b'"}')),
        "words": chat(said + json.dumps(text, ensure_ascii=False).encode()[: MEBIBYTE - 100].rstrip(b'"') + b'"}]}'),
        "ids, and a text at the end": prompt(_filled(p + b"[", b"1,", b'"x"]}')),
        "parts of a message": chat(said + b"[" + b'{"type":"text","text":"x"},' * 16_000 + b"{}]}]}"),
    }
