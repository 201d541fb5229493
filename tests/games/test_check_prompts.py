"""A card is checked with all its prompts: one wrong variable in one file is a sentence, before anything is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scope_jax.config import Config
from scope_jax.config.base import EXAM_PROMPTS, prompts_of
from scope_jax.games import GAMES, game_of, load_card
from scope_jax.games.ssp.options import options
from scope_jax.run.rules import check
from scope_jax.text.templates import PromptError

ROOT = Path(__file__).parents[2]
JUDGE = ("judge.url=http://judge", "judge.model=m")
OPEN = {"format_open.txt", "format_free_form_open.txt", "free_form_open.txt", "multiple_choice_open.txt"}
TYPES = {"answer_boolean.txt", "answer_float.txt"}  # answer types that the card does not ask for
# By game: overrides, and the files of its folder that the card then does not use.
CASES = {
    "ssp": ((*JUDGE, "ssp.grader=judge"), set()),
    "scope": ((), set()),
    "spice": (("spice.formats=both",), {*OPEN, "format_free_form.txt", *TYPES}),
    "spell": ((*JUDGE, "spell.rule=judge", "spell.grounding_filter=true"), set()),
    "score": (
        ("score.harness.driver=endpoint", "score.harness.endpoint.url=http://x", "score.harness.endpoint.model=m"),
        {"rubric.txt"},
    ),
    "spiral": ((), set()),
}


def card_of(game: str) -> Config:
    prompts = f"{game}.prompts={prompts_of(game)}"
    return load_card(ROOT / "configs" / game / "atlas.toml", [prompts, *CASES[game][0]])


def broken(game: str, folder: Path, name: str, cfg: Config) -> str:
    """What is said about the card when one prompt has a variable that the game does not fill; "" if nothing."""
    place = folder / name / "prompts"
    shutil.copytree(prompts_of(game), place)
    with (place / name).open("a", encoding="utf-8") as file:
        file.write("\n{misspelled}\n")
    section = getattr(cfg, game).model_copy(update={"prompts": str(place)})
    try:
        game_of(cfg).check_prompts(cfg.model_copy(update={game: section}))
    except PromptError as error:
        return str(error).replace(str(place / name), "FILE")
    return ""


@pytest.mark.parametrize("game", CASES)
def test_a_wrong_variable_in_any_prompt_is_found(game: str, tmp_path: Path) -> None:
    cfg, (_, unused) = card_of(game), CASES[game]
    game_of(cfg).check_prompts(cfg)
    names = sorted(path.name for path in Path(prompts_of(game)).glob("*.txt"))
    said = {name: broken(game, tmp_path, name, cfg) for name in names}
    assert {name for name in names if not said[name]} == unused
    for name in names:
        assert name in unused or said[name].startswith("FILE: unknown variable {misspelled}"), (name, said[name])


def test_the_judges_prompt_of_ssp_is_checked_for_every_grader_that_asks_it(tmp_path: Path) -> None:
    for grader, wanted in (("exact-match-then-judge", True), ("judge", True), ("exact-match", False)):
        prompts = f"ssp.prompts={prompts_of('ssp')}"
        cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml", [prompts, *JUDGE, f"ssp.grader={grader}"])
        assert bool(broken("ssp", tmp_path / grader, "judge.txt", cfg)) == wanted


def test_a_missing_variable_is_a_finding_of_check(tmp_path: Path) -> None:
    cfg = card_of("ssp")
    shutil.copytree(prompts_of("ssp"), tmp_path / "prompts")
    file = tmp_path / "prompts" / "solver.txt"
    file.write_text(file.read_text(encoding="utf-8").replace("{question}", "{quesion}"), encoding="utf-8")
    wrong = cfg.model_copy(update={"ssp": options(cfg).model_copy(update={"prompts": str(tmp_path / "prompts")})})
    (finding,) = [one for one in check(wrong) if one.name == "prompts"]
    assert finding.wrong and f"{file}: unknown variable {{quesion}}" in finding.text and "{question}" in finding.text


GRADERS = (
    *("exams/grader", "exams/judge", "exams/pairwise", "exams/rating", "ssp/judge", "spell/judge", "spell/verifier"),
    *("scope/grader", "scope/gate_entity", "scope/gate_relevance", "scope/rubric_writer", "score/scoring"),
)


def _file(name: str) -> Path:
    folder, stem = name.split("/")
    return (EXAM_PROMPTS if folder == "exams" else Path(prompts_of(folder))) / f"{stem}.txt"


@pytest.mark.parametrize("name", GRADERS)
def test_no_grader_follows_instructions_in_what_it_grades(name: str) -> None:
    text = _file(name).read_text(encoding="utf-8")
    lines = [line.lower() for line in text.splitlines() if "nstructions" in line]
    assert any("do not follow" in line or "not meant for you" in line for line in lines)


def test_every_prompt_that_shows_an_answer_to_a_judge_is_a_graders() -> None:
    shown = {"{answer}", "{prediction}", "{reports}", "{first}"}
    folders = {**{game: Path(prompts_of(game)) for game in GAMES}, "exams": EXAM_PROMPTS}
    texts = {f"{name}/{path.stem}": path.read_text("utf-8") for name in folders for path in folders[name].glob("*.txt")}
    found = {name for name, text in texts.items() if any(word in text for word in shown)}
    assert found - {"ssp/proposer"} <= {*GRADERS}
