"""Prompts of the games in every dialect and real template keep their ids (digests in `prompt_ids.json`)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.games.scope import messages as of_scope
from scope_jax.games.score import messages as of_score
from scope_jax.games.score.roles import fixed_rubric
from scope_jax.games.ssp import messages as of_ssp
from scope_jax.games.ssp.state import Slot
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.turns import Joiner, Mode
from scope_jax.rollouts.types import Continuation, Restart, Turn
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.vocabularies import vocabulary

ROOT = Path(__file__).parents[2]
OLMO = ROOT / "tests" / "games" / "olmo3.jinja"
FOLDERS = {"Qwen": "qwen", "deepseek": "qwen", "meta-llama": "llama3"}
DIALECTS = ("function", "hermes", "observation", "xml")
GOLDEN = Path(__file__).with_name("prompt_ids.json")


def prompts(dialect: str) -> list[Messages]:
    """Those of the roles that search, as the cards have them."""

    def card(game: str, name: str) -> Config:
        cfg = load_card(ROOT / "configs" / game / f"{name}.toml")
        return cfg.model_copy(update={"model": cfg.model.model_copy(update={"dialect": dialect})})

    ssp, scope, score = card("ssp", "qwen2.5-7b"), card("scope", "qwen2.5-7b"), card("score", "qwen2.5-7b")
    proposer = of_ssp.for_proposer(ssp, Slot(0, 0, ("Bern",), 2), 3)
    return [
        proposer,
        replace(proposer, system="Be brief."),
        of_ssp.for_solver(card("ssp", "atlas"), "Which city lies on the Aare?"),
        of_scope.for_solver(scope, "Tell of Bern."),
        of_score.for_solver(score, "Tell of Bern.", fixed_rubric(score)),
    ]


def ids_of(tokenizer: Tokenizer, dialect: str, mode: Mode) -> str:
    """Of the prompts, and of what is read after a turn; "refused" for a pair that no run starts with."""
    try:
        joiner = Joiner(mode, tokenizer, dialects.load(dialect))
    except UserError:
        return "refused"
    text = joiner.dialect.observation(["Doc 1\nThe Aare.", "Doc 1\nThe Rhine."])
    said = tokenizer.encode("I look.")
    turn = Turn("sampled", np.asarray(said, np.int32), np.zeros(len(said), np.float32), "I look.", "stop")
    rows = []
    for messages in prompts(dialect):
        reply = joiner.responder(lambda turns: text, messages)((turn,))
        assert isinstance(reply, Continuation | Restart)
        ids = reply.ids if isinstance(reply, Continuation) else reply.prompt_ids
        rows += [joiner.prompt(messages), [int(id) for id in ids]]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def digests(shared: Path, files: list[Path]) -> dict[str, str]:
    """By template, dialect and mode."""
    found: dict[str, str] = {}
    for file in files:
        folder = next((name for start, name in FOLDERS.items() if file.name.startswith(start)), "olmo2_dolma2")
        tokenizer = vocabulary(shared / "tokenizers" / folder)
        tokenizer._hf.chat_template = file.read_text(encoding="utf-8")
        for dialect in DIALECTS:
            for mode in get_args(Mode):
                found[f"{file.stem} {dialect} {mode}"] = ids_of(tokenizer, dialect, mode)
    return found


ONE_OF_EACH = ("Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct", OLMO.stem)  # of each vocabulary


@pytest.mark.parametrize("names", [ONE_OF_EACH, pytest.param((), marks=pytest.mark.slow)], ids=["one of each", "all"])
def test_prompts_and_turns_have_the_ids_that_they_had(shared_data: Path, names: tuple[str, ...]):
    golden = json.loads(GOLDEN.read_text())
    files = [*sorted((shared_data / "chat_templates").glob("*.jinja")), OLMO]
    wanted = {name: digest for name, digest in golden.items() if not names or name.split()[0] in names}
    assert digests(shared_data, [file for file in files if not names or file.stem in names]) == wanted
