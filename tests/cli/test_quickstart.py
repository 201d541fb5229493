"""docs/quickstart.md as it stands: its files are saved, its commands run, and their output is what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from scope_jax.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
PORT = "8123"  # on the page; the test takes a free one
ANYTHING = "…"  # in a line: any text; a line by itself: any lines


def files() -> dict[str, str]:
    """The files of the page: a block after "`my/…`:" or "as `my/…`:"."""
    found = re.findall(r"`(my/[\w.]+)`[^`]*?:\n\n```(?:json|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return dict(found)


def commands() -> list[tuple[str, list[str]]]:
    """Each command of the page with the lines that it shows."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def pattern(lines: list[str]) -> re.Pattern[str]:
    parts = [
        r"(?:.*\n)*?" if line == ANYTHING else ".*".join(map(re.escape, line.split(ANYTHING))) + r"\n" for line in lines
    ]
    return re.compile("".join(parts))


def test_the_page_has_its_files_and_shows_every_stage() -> None:
    assert sorted(files()) == ["my/answers.jsonl", "my/corpus.jsonl", "my/questions.jsonl", "my/tiny.py"]
    ours = re.findall(r"(?:^|\| )scope-jax (\w+)", "\n".join(command for command, _ in commands()), re.MULTILINE)
    assert ours == ["new", "check", "index", "train", "train", "train", "report", "eval", "export", "serve", "chat"]
    assert pattern(["a … c", "…", "d"]).fullmatch("a b c\nx\ny\nd\n")
    assert pattern(["a … c", "d"]).fullmatch("a b c\nx\nd\n") is None


def test_every_command_of_the_page_has_known_options() -> None:
    """Also those inside sentences."""
    program = typer.main.get_command(app)
    inline = re.findall(r"`(scope-jax \w[^`]*)`", PAGE)
    shown = [command.split(" | ")[-1].removesuffix(" &") for command, _ in commands() if "scope-jax " in command]
    whole = [command for command in inline if len(command.split()) > 2 and not command.endswith(("--model", "--help"))]
    assert len(whole) >= 2
    for command in (*shown, *whole):
        _, name, *words = shlex.split(command)
        program.commands[name].make_context(name, words)  # type: ignore[attr-defined]  # raises for a wrong use


@pytest.mark.slow
def test_the_commands_of_the_page_run_as_shown(tmp_path: Path) -> None:
    (tmp_path / "my").mkdir()
    for name, text in files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("scope-jax", "-m scope_jax"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (programs / name).chmod(0o755)
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server: subprocess.Popen[str] | None = None
    try:
        for command, lines in commands():
            expected = pattern([line.replace(PORT, port) for line in lines])
            if command == "kill %1":
                assert server is not None
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(60)
                continue
            output = tmp_path / "output"
            with output.open("w") as file:
                process = subprocess.Popen(
                    command.removesuffix("&").replace(PORT, port),
                    cwd=tmp_path,
                    env=os.environ | own,
                    shell=True,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            if command.endswith("&"):
                server = process
                limit = time.monotonic() + 300
                while not expected.fullmatch(output.read_text(encoding="utf-8")):
                    assert process.poll() is None and time.monotonic() < limit, output.read_text(encoding="utf-8")
                    time.sleep(0.1)
                continue
            assert process.wait(600) == 0, output.read_text(encoding="utf-8")
            said = output.read_text(encoding="utf-8")
            assert "WARNING" not in said, (command, said)
            assert expected.fullmatch(said if not said or said.endswith("\n") else f"{said}\n"), (command, said)
    finally:
        if server is not None and server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
    assert (tmp_path / "runs/my/report/index.html").is_file() and (tmp_path / "out/my/model.safetensors").is_file()
