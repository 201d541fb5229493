"""No command prints the password of an address; and what is said where the current folder is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.errors import UserError, sentence, without_passwords

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("http://me:secret@host/v1 is an endpoint", "http://host/v1 is an endpoint"),
        ("cannot reach 'https://me:secret@host:8000'", "cannot reach 'https://host:8000'"),
        ("(ws://secret@host) and s3://me:secret@host", "(ws://host) and s3://host"),
        ("http://:secret@host", "http://host"),
        ("http://me:@host", "http://host"),
        ("http://me:12345@host", "http://host"),
        ("http://me:1secret/2@host", "http://host"),
        ("the folder http:/me:secret@host/v1", "the folder http:/host/v1"),
        ("http://me:s%40cret@[::1]:80/v1", "http://[::1]:80/v1"),
        ("http://host:80/a@b, http://host/a@b?c@d", "http://host:80/a@b, http://host/a@b?c@d"),
        ("me@example.org wrote: http://host:80 and a@b", "me@example.org wrote: http://host:80 and a@b"),
        ("http://host:80, or me@example.org", "http://host:80, or me@example.org"),
    ],
)
def test_passwords_are_left_out(text: str, seen: str) -> None:
    assert without_passwords(text) == seen
    assert sentence(UserError(text)) == f"{seen}." or seen.endswith(")")


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "URL"],
        ["eval", "URL", "--exam", "math500"],
        ["eval", "URL", "--exam", "math500", "--model", "m"],
        ["eval", "URL", "--exam", "math500", "--model", "m", "--card", "c.toml"],
        ["eval", "URL", "one", "too", "many"],
        ["eval", "x", "URL"],
        ["check", "ssp/atlas", "--set", "sandbox.endpoint=URL"],
        ["check", "URL"],
        ["chat", "URL"],
        ["serve", "URL"],
        ["report", "URL"],
        ["export", "URL", "out"],
        ["train", "URL"],
        ["URL"],
        ["train", "ssp/atlas", "--URL"],
    ],
)
@pytest.mark.parametrize("url", ["http://me:secret@127.0.0.1:9/v1", "http://me:se/secret@127.0.0.1:9"])
def test_no_command_prints_one(arguments: list[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [argument.replace("URL", url) for argument in arguments])
    assert result.exit_code == 2 and result.output and "secret" not in result.output


def test_a_deleted_current_folder_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = "import os, sys; os.rmdir(os.getcwd()); from scope_jax.cli import run; sys.argv[1:] = ['cards']; run()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=gone, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (
        done.returncode == 2 and done.stderr.count("\n") == 1 and "the current folder has been deleted" in done.stderr
    )
