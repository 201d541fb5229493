"""SPICE's cards and prompts: each ablation changes one thing, the longest rows fit, and every prompt file is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from scope_jax.config import Config
from scope_jax.config.base import prompts_of
from scope_jax.games import GAMES, load_card
from scope_jax.games.spice import messages
from scope_jax.games.spice.options import options
from scope_jax.games.spice.state import MULTIPLE_CHOICE, Segment
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.prompting import Prompt
from scope_jax.text.messages import Messages
from scope_jax.text.templates import PromptError
from tests.games import spice_world

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "spice"
TYPES = ["integer", "float", "expression", "string", "boolean"]


def test_each_ablation_on_atlas_changes_one_thing_of_its_card_and_the_control_its_weight() -> None:
    base = load_card(FOLDER / "atlas.toml").model_dump()
    found = {}
    for path in sorted((FOLDER / "ablations").glob("atlas-*.toml")):
        card = load_card(path).model_dump()
        assert [key for key in base if card[key] != base[key]] == ["spice"]
        found[path.stem] = {key: value for key, value in card["spice"].items() if value != base["spice"][key]}
    assert found == {
        "atlas-absolute-zero": {"challenger_reward": "absolute-zero"},
        "atlas-absolute-zero-heavy": {"challenger_reward": "absolute-zero", "challenger_weight": 2.0},
        "atlas-eight-updates": {"loss": base["spice"]["loss"] | {"mini_batches": 8}},
        "atlas-fixed-challenger": {
            "train": "reasoner",
            "challenger": base["spice"]["challenger"] | {"model": "base"},
        },
        "atlas-light-challenger": {"challenger_weight": 0.15},
        "atlas-no-corpus": {"corpus": False},
        "atlas-r-zero": {"challenger_reward": "r-zero"},
        "atlas-threshold": {"challenger_reward": "threshold"},
    }


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.toml")), ids=lambda path: path.stem)
def test_a_gradient_update_has_128_trajectories_as_in_the_paper(path: Path) -> None:
    """App. 8, in every card of the paper's models, also where one role is trained; what an ablation changes is said."""
    cfg = load_card(path)
    roles = {"both": ("challenger", "reasoner")}.get(options(cfg).train, (options(cfg).train,))
    episodes = cfg.train.batch_size * sum(getattr(options(cfg), role).samples for role in roles)
    updates = options(cfg).loss.mini_batches
    if path.stem in ("one-update", "atlas-eight-updates"):
        assert updates != max(episodes // 128, 1)
    else:
        assert updates == max(episodes // 128, 1)


def test_every_document_and_question_of_atlas_fits_into_the_cards_prompts() -> None:
    cfg = load_card(FOLDER / "atlas.toml", [f"spice.prompts={ROOT / 'assets' / 'atlas' / 'prompts' / 'spice'}"])
    tokenizer = Tokenizer.load(ROOT / "assets" / "atlas" / "spice" / "tokenizer")
    longest = {}
    for name, field in (("documents", "text"), ("questions_held_out", "question")):
        lines = (ROOT / "assets" / "atlas" / "spice" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = map(json.loads, lines)
        longest[name] = max((row[field] for row in rows), key=lambda text: len(tokenizer.encode(text)))
    assert len(tokenizer.encode(longest["documents"])) <= options(cfg).document_tokens
    written = messages.for_task(cfg, Segment(0, "", longest["documents"]), "expression")
    asked = messages.for_reasoner(cfg, longest["questions_held_out"])
    for prompt, card in ((written, options(cfg).challenger), (asked, options(cfg).reasoner)):
        ids = tokenizer.encode_chat([{"role": "user", "content": prompt.user}])
        assert len(ids) <= card.max_prompt_tokens
        assert len(ids) + card.sampling.max_tokens <= cfg.rollout.max_length


# ------------------------------------------------------------------------------------------------------------- prompts
def test_every_file_is_used_by_some_card_and_every_variable_is_filled(monkeypatch: pytest.MonkeyPatch):
    used: set[str] = set()
    read = Prompt.template

    def template(prompt: Prompt, cfg: Config) -> Messages:
        used.add(prompt.name)
        return read(prompt, cfg)

    monkeypatch.setattr(Prompt, "template", template)
    said, listed = [], set()
    for corpus in (True, False):
        for formats in ("both", "free-form"):
            cfg = spice_world.card(corpus=corpus, formats=formats, answer_types=TYPES, data={"documents": "none"})
            listed |= {prompt.name for role in GAMES["spice"].roles(cfg) for prompt in role.prompts}
            document = Segment(0, "d", "On {document} and {answer_type}.")
            said += [messages.for_format(cfg, document)]
            said += [messages.for_task(cfg, document, kind) for kind in (MULTIPLE_CHOICE, *TYPES)]
    said.append(messages.for_reasoner(spice_world.card(), "How {many}?"))
    assert used == listed == {path.stem for path in Path(prompts_of("spice")).glob("*.txt")}
    for prompt in said:
        text = prompt.user.replace("On {document} and {answer_type}.", "").replace("{many}", "")
        assert not any(f"{{{name}}}" in text for name in ("document", "answer_type", "answer_form", "answer_types"))
        assert "{max_words}" not in text and "{type_names}" not in text and prompt.system is None


def test_a_custom_folder_may_contain_system_messages(tmp_path: Path):
    (tmp_path / "reasoner.txt").write_text("{question}")
    (tmp_path / "reasoner.system.txt").write_text("Be brief.")
    cfg = spice_world.card(prompts=str(tmp_path))
    assert messages.for_reasoner(cfg, "How many?").system == "Be brief."


def test_both_stages_of_the_challenger_have_one_system_message(tmp_path: Path):
    def folder(system: str) -> Path:
        place = tmp_path / str(len(system))
        shutil.copytree(prompts_of("spice"), place)
        (place / "challenger.system.txt").write_text(system)
        return place

    document = Segment(0, "d", "On Bern.")
    cfg = spice_world.card(prompts=str(folder("Be fair.")))
    stages = (messages.for_format(cfg, document), messages.for_task(cfg, document, "integer"))
    assert [prompt.system for prompt in stages] == ["Be fair.", "Be fair."]
    assert [path.name for path in GAMES["spice"].system_messages(cfg)] == ["challenger.system.txt"]
    other = spice_world.card(prompts=str(folder("Be fair to {document}.")))
    with pytest.raises(PromptError, match=r"challenger\.system\.txt: unknown variable \{document\}"):
        GAMES["spice"].check_prompts(other)


def test_the_template_of_the_octothinker_cards():
    template = ROOT / "configs" / "spice" / "octothinker.jinja"
    tokenizer = Tokenizer.load(str(ROOT / "assets" / "atlas" / "ssp" / "base"), str(template))
    ids = tokenizer.encode_chat([{"role": "user", "content": "How many?"}])
    text = tokenizer.decode(ids)
    assert text.endswith("before it tells the answer.\n\nUser: How many?\n\nAssistant:")
    ids = tokenizer.encode_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}])
    assert tokenizer.decode(ids).endswith("answer.\n\nBe brief.\n\nUser: How many?\n\nAssistant:")
