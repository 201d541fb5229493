"""The prompts of SPICE's roles: every file is used, and the chat template of the OctoThinker cards works."""

from __future__ import annotations

from pathlib import Path

import pytest

from scope_jax.config.base import prompts_of
from scope_jax.games.spice import instructions
from scope_jax.games.spice.records import MULTIPLE_CHOICE, Document
from scope_jax.models.tokenizer import Tokenizer
from tests.games.spice_world import card

ROOT = Path(__file__).parents[2]
TYPES = ["integer", "float", "expression", "string", "boolean"]


def test_every_file_is_used_by_some_card_and_every_variable_is_filled(monkeypatch: pytest.MonkeyPatch):
    used: set[str] = set()
    fill = instructions.filled

    def filled(folder: str, name: str, *rest: object) -> str:
        used.add(name)
        return fill(folder, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(instructions, "filled", filled)
    said = []
    for corpus in (True, False):
        for formats in ("both", "free-form"):
            cfg = card(corpus=corpus, formats=formats, answer_types=TYPES, data={"documents": "none"})
            document = Document(0, "d", "On {document} and {answer_type}.")
            said += [instructions.for_format(cfg, document)]
            said += [instructions.for_task(cfg, document, kind) for kind in (MULTIPLE_CHOICE, *TYPES)]
    said.append(instructions.for_reasoner(card(), "How {many}?"))
    assert used == {path.stem for path in Path(prompts_of("spice")).glob("*.txt")}
    for messages in said:
        text = messages.user.replace("On {document} and {answer_type}.", "").replace("{many}", "")
        assert not any(f"{{{name}}}" in text for name in ("document", "answer_type", "answer_form", "answer_types"))
        assert "{max_words}" not in text and "{type_names}" not in text and messages.system is None


def test_a_custom_folder_may_contain_system_messages(tmp_path: Path):
    (tmp_path / "reasoner.txt").write_text("{question}")
    (tmp_path / "reasoner.system.txt").write_text("Be brief.")
    cfg = card(prompts=str(tmp_path))
    assert instructions.for_reasoner(cfg, "How many?").system == "Be brief."


def test_the_template_of_the_octothinker_cards():
    template = ROOT / "configs" / "spice" / "octothinker.jinja"
    tokenizer = Tokenizer.load(str(ROOT / "assets" / "atlas" / "ssp" / "base"), str(template))
    ids = tokenizer.encode_chat([{"role": "user", "content": "How many?"}])
    text = tokenizer.decode(ids)
    assert text.endswith("before it tells the answer.\n\nUser: How many?\n\nAssistant:")
    ids = tokenizer.encode_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}])
    assert tokenizer.decode(ids).endswith("answer.\n\nBe brief.\n\nUser: How many?\n\nAssistant:")
