"""Half characters in what others answer: a record holds U+FFFD, and whoever asks reads what a resumed run reads."""

from __future__ import annotations

from pathlib import Path

from scope_jax.rollouts.types import ToolResult
from scope_jax.run.recording import Recording

HALF, WHOLE = "a \ud83d b", "a \ufffd b"


def test_a_record_takes_any_text_and_gives_it_back(tmp_path: Path) -> None:
    def work(items: list[str]) -> list[dict[str, list[str]]]:
        return [{HALF: [item]} for item in items]

    def never(items: list[str]) -> list[str]:
        raise AssertionError("it has been recorded")

    first = Recording()
    first.open(tmp_path, 0)
    assert first.answers(1, "judge", [HALF, "b"], work) == [{WHOLE: [WHOLE]}, {WHOLE: ["b"]}]
    first.calls(1, "solver", "5", 0).write("solver", 0, ToolResult(0, "solver", "web", {"q": HALF}, HALF, "ok"))
    first.close()
    again = Recording()
    again.open(tmp_path, 0)
    assert again.answers(1, "judge", [HALF, "b"], never) == [{WHOLE: [WHOLE]}, {WHOLE: ["b"]}]
    (line,) = again.calls(1, "solver", "5", 0).earlier("solver")
    assert (line["text"], line["arguments"]) == (WHOLE, {"q": WHOLE})
    again.complete(1)
    again.close()
