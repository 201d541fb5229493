"""Every hostile file is refused in one sentence, within 2 s of CPU time and 1 GiB; what is only unusual is opened."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scope_jax.models.tokenizers.tokenizer import Tokenizer
from tests.models.hostile_cases import edit
from tests.models.hostile_files import BASE, CASES
from tests.models.hostile_tokenizers import added

SECONDS, BYTES = 2.0, 2**30


def bounded() -> None:
    """Limits of the process that opens the files: a case that fails must not take the machine with it."""
    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))
    resource.setrlimit(resource.RLIMIT_CPU, (240, 240))


ONE_OF_EACH = list({name.partition(":")[0]: name for name in CASES}.values())


@pytest.mark.parametrize(
    "cases", [ONE_OF_EACH, pytest.param(list(CASES), marks=pytest.mark.slow)], ids=["one of each kind", "all"]
)
def test_every_file_is_refused_in_one_sentence_and_soon(cases: list[str], tmp_path: Path) -> None:
    """One process opens all of them, each in a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.models.hostile_files", str(tmp_path), *cases],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        preexec_fn=bounded,
        timeout=500,
        check=False,
    )
    found = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert len(found) == len(cases), (cases[len(found)], done.stderr[-2000:])
    wrong = {
        name: line
        for name, line in found.items()
        if not line["said"] or not line["user"] or len(line["said"]) > 600 or line["seconds"] > SECONDS
    }
    assert not wrong
    assert max(line["peak"] for line in found.values()) <= BYTES


def test_there_are_cases_of_every_kind() -> None:
    kinds = {name.partition(":")[0] for name in CASES}
    assert len(CASES) >= 150 and len(kinds) >= 9


def copied(tmp_path: Path) -> tuple[Path, int]:
    """(a folder, the first id that its tokenizer does not have)."""
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    return folder, Tokenizer.load(folder).vocab_size


def test_many_added_tokens_are_read_in_linear_time(tmp_path: Path) -> None:
    """10,000 special ones, and 5,000 more that only tokenizer_config.json calls special."""
    folder, first = copied(tmp_path)
    count = 10_000
    added(*({"id": first + i, "content": f"<|own {i}|>"} for i in range(count)))(folder)
    added(*({"id": first + count + i, "content": f"<|other {i}|>"} for i in range(5000)), special=False)(folder)
    decoder = {str(first + count + i): {"content": f"<|other {i}|>", "special": True} for i in range(5000)}
    edit("tokenizer_config.json", added_tokens_decoder=decoder)(folder)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == first + 15_000 and first + 14_999 in tokenizer.special_ids
    ids = tokenizer.encode("<|own 7|><|other 7|>")
    assert not tokenizer.special_ids.intersection(ids) and tokenizer.encode_marked("<|own 7|>") == [first + 7]


def test_a_hole_among_the_ids_is_no_claim(tmp_path: Path) -> None:
    """Where the vocabulary itself has the added tokens, the library keeps their ids beside a hole."""
    folder, first = copied(tmp_path)
    path = folder / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["model"]["vocab"] |= {token["content"]: token["id"] for token in contents["added_tokens"]}
    contents["model"]["vocab"]["zz"] = first + 300
    path.write_text(json.dumps(contents))
    assert Tokenizer.load(folder).vocab_size == first + 301


def test_how_rows_were_filled_has_no_part_in_ids(tmp_path: Path) -> None:
    """A tokenizer.json may ask to fill every text to 2^40 tokens, or to cut it to none."""
    folder, _ = copied(tmp_path)
    path = folder / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["padding"] = {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None}
    contents["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    contents["truncation"] = {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 2**40}
    path.write_text(json.dumps(contents))
    assert Tokenizer.load(folder).encode("Which river?") == Tokenizer.load(BASE).encode("Which river?")


def test_256_ends_are_accepted(tmp_path: Path) -> None:
    folder, _ = copied(tmp_path)
    edit("generation_config.json", eos_token_id=list(range(256)))(folder)
    assert set(range(256)) <= set(Tokenizer.load(folder).eos_ids)
