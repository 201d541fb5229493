"""cards, new, check; --version, and wrong uses of the command line."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.cli.output import console
from scope_jax.config import CardError
from scope_jax.games import GAMES, load_card
from scope_jax.games.rlvr.options import RLVRSection
from scope_jax.run.folder import RunFolder
from scope_jax.version import __version__

ROOT = Path(__file__).parents[2]
ATLAS = ROOT / "assets" / "atlas"
BASE = ATLAS / "ssp" / "base"


def invoke(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def listed() -> list[dict[str, Any]]:
    """The cards of configs/."""
    return json.loads(invoke("cards", ROOT / "configs", "--json").stdout)


def test_cards_says_what_each_needs(
    listed: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {one["card"]: one for one in listed}
    atlas = found["configs/ssp/atlas.toml"] if Path.cwd() == ROOT else found[str(ROOT / "configs/ssp/atlas.toml")]
    assert atlas["game"] == "ssp" and atlas["needs"] == [] and atlas["Hardware"].startswith("2 CPU cores")
    paper = next(one for name, one in found.items() if name.endswith("configs/ssp/qwen2.5-7b.toml"))
    assert any(need.startswith("retrieval.corpus: ") for need in paper["needs"])
    monkeypatch.chdir(tmp_path)  # the files of Atlas's cards are found from anywhere
    text = invoke("cards", "ssp").stdout
    assert text.startswith("ssp/atlas  (ssp)\n") and "needs nothing: everything is here" in text
    assert text.index("\nssp/qwen2.5-7b  (ssp)\n") < text.index("\nssp/ablations/noise-0  (ssp)\n")
    assert invoke("cards", tmp_path).exit_code == 2


def test_cards_is_a_line_for_each_that_is_no_variant() -> None:
    lines = CliRunner().invoke(app, ["cards"], env={"COLUMNS": "100"}).stdout.splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) < 80
    listed = [line.split() for line in lines if line[0] != " "][:-1]
    first = ["rlvr/atlas", "rlvr/gsm8k", "rlvr/smollm2-135m", "sft/atlas", "sft/smollm2-135m", "dpo/atlas"]
    assert [name for name, *_ in listed[:6]] == first
    cards = {str(path.relative_to(ROOT / "configs").with_suffix("")) for path in (ROOT / "configs").glob("*/*.toml")}
    assert sorted(name for name, *_ in listed) == sorted(name for name in cards if not name.startswith("exams/"))
    assert all(state == "ready" for name, state, *_ in listed if name.endswith("/atlas"))
    assert any(line.endswith("(1 with adapters, 27 ablations: scope-jax cards spell)") for line in lines)


def test_exams_are_no_cards_and_a_card_without_items_has_its_first_line(listed: list[dict[str, Any]]) -> None:
    assert not any("/exams/" in one["card"] for one in listed)
    assert all("About" in one or "Reproduces" in one for one in listed)


def short(game: str) -> tuple[str, ...]:
    """Atlas's prompts of SSP and SCOPE: the package's are longer than what its models can read."""
    return ("--set", f"{game}.prompts={ATLAS / 'prompts' / game}") if game in ("ssp", "scope") else ()


def test_one_bad_file_does_not_end_a_list(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'# caf\xe9\nsystem = "ssp"\n')
    (tmp_path / "folder.toml").mkdir()
    shutil.copy(ROOT / "configs" / "ssp" / "atlas.toml", tmp_path / "good.toml")
    found = json.loads(invoke("cards", tmp_path, "--json").stdout)
    assert [Path(one["card"]).name for one in found] == ["good.toml", "latin.toml"] and "UTF-8" in found[1]["needs"][0]
    cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml")
    for name, line in (("a", '{"x": 1}'), ("b", "[1]"), ("c", "")):
        RunFolder(tmp_path / name, cfg).metrics(1, {"solver/reward": 0.5})
        with (tmp_path / name / "metrics.jsonl").open("a") as file:
            file.write(line and line + "\n")
    assert [one["steps"] for one in json.loads(invoke("runs", tmp_path, "--json").stdout)] == [1, 1, 1]
    assert "line 2 of" in invoke("report", tmp_path / "b").stderr


def test_one_broken_game_or_endless_number_does_not_end_a_list(tmp_path: Path) -> None:
    """A list of runs imports no game, as none is played."""
    (tmp_path / "deep.toml").write_text("x = " + "[" * 3000)
    (tmp_path / "digits.toml").write_text("x = " + "9" * 5000)
    (tmp_path / "game.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "own").mkdir()
    for card in (tmp_path / "own.toml", tmp_path / "own" / "config.toml"):
        card.write_text('system = "game.py"\n[model]\ncheckpoint = "base"\n[train]\nsteps = 7\n')
    found = {Path(one["card"]).name: one["needs"][0] for one in json.loads(invoke("cards", tmp_path, "--json").stdout)}
    assert found["deep.toml"].endswith("nested too deeply.") and found["digits.toml"].endswith("too many digits.")
    assert "a game that can be imported: ModuleNotFoundError: No module" in found["own.toml"]
    (run,) = json.loads(invoke("runs", tmp_path, "--json").stdout)
    assert (run["game"], run["of"], run["steps"]) == (str(tmp_path / "game.py"), 7, 0)


def test_colons_are_no_emoji() -> None:
    screen = console()
    with screen.capture() as said:
        screen.print("runs/:bug:/x")
    assert said.get() == "runs/:bug:/x\n"


@pytest.mark.parametrize("command", ["new", "convert", "plan", "eval", "train", "serve", "data", "report"])
def test_help_keeps_square_brackets(command: str) -> None:
    """Rich's markup would swallow them, and leave a space before the full stop."""
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}).stdout
    assert "Usage" in text and " . " not in text and "  of CARD" not in text, text


def test_help_has_no_angle_brackets() -> None:
    """Markdown takes <run> for HTML, and <run>/profile was shown as /profile."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    texts = {name: [command.help, *(one.help for one in command.params if "help" in vars(one))]
             for name, command in commands.items()}  # fmt: skip
    assert len(texts) > 15 and [name for name, own in texts.items() if any("<" in (text or "") for text in own)] == []


@pytest.mark.slow
def test_a_platform_without_devices_is_one_sentence(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "scope_jax", "train", "configs/ssp/atlas.toml", "--run", str(tmp_path / "run")]
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "JAX finds no device of the platform 'cuda'" in done.stderr


@pytest.mark.parametrize(
    "game", ["spice", "score", *(pytest.param(game, marks=pytest.mark.slow) for game in ("scope", "spell"))]
)
def test_new_knows_which_games_search(tmp_path: Path, game: str) -> None:
    data = getattr(load_card(ROOT / "configs" / game / "atlas.toml").data, GAMES[game].data[0])
    words = (
        "new",
        tmp_path / "card.toml",
        "--game",
        game,
        "--model",
        ATLAS / game / "base",
        "--data",
        data,
        *short(game),
    )
    corpus = ("--corpus", ATLAS / "corpus.jsonl")
    if game == "score":
        assert "score searches a corpus; give one with --corpus" in invoke(*words).stderr
    if game in ("spice", "spell"):
        assert f"{game} does not search" in invoke(*words, *corpus).stderr
    assert not (tmp_path / "card.toml").exists()
    result = invoke(*words, *(corpus if game == "score" else ()))
    assert result.exit_code == 0, result.output
    assert "ok     first prompts: role " in result.stdout


@pytest.mark.parametrize(
    ("game", "role"), [("spiral", "spiral"), pytest.param("r_zero", "challenger", marks=pytest.mark.slow)]
)
def test_new_takes_no_data_for_games_that_read_none(tmp_path: Path, game: str, role: str) -> None:
    words = ("new", tmp_path / "card.toml", "--game", game, "--model", BASE)
    short = ("--set", f"{game}.prompts={ATLAS / 'prompts' / game}")
    assert f"{game} reads no data; remove --data" in invoke(*words, "--data", ATLAS / "answers.jsonl").stderr
    result = invoke(*words, *short)
    assert result.exit_code == 0, result.output
    assert f"ok     first prompts: role {role}" in result.stdout
    assert load_card(tmp_path / "card.toml").data.rows is None
    assert " on your own model; " in (tmp_path / "card.toml").read_text(encoding="utf-8")


def test_new_takes_data_for_games_that_read_any(tmp_path: Path) -> None:
    words = ("new", tmp_path / "ssp.toml", "--game", "ssp", "--model", BASE, "--corpus", ATLAS / "corpus.jsonl")
    assert "ssp needs data; give them with --data FILE" in invoke(*words).stderr


def test_new_joins_turns_as_the_paper_and_the_template_allow(tmp_path: Path) -> None:
    """Atlas is a Qwen3 whose template declares no tools; with Qwen3's kind of template SCOPE has its own calls."""

    def turns(game: str, model: Path) -> tuple[str, str]:
        data = getattr(load_card(ROOT / "configs" / game / "atlas.toml").data, GAMES[game].data[0])
        card = tmp_path / f"{game}-{model.name}.toml"
        words = ("new", card, "--game", game, "--model", model, "--data", data, "--corpus", ATLAS / "corpus.jsonl")
        assert invoke(*words, *short(game)).exit_code == 0
        cfg = load_card(card)
        return cfg.model.dialect, cfg.model.turns

    shutil.copytree(ATLAS / "scope" / "base", tmp_path / "qwen3")
    (tmp_path / "qwen3" / "chat_template.jinja").write_text(
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<tool_call><|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert turns("scope", tmp_path / "qwen3") == ("hermes", "chat-trimmed")
    assert turns("scope", ATLAS / "scope" / "base")[0] == "xml"
    assert turns("score", ATLAS / "score" / "base")[0] == "observation"


def test_check_renders_the_first_prompts(tmp_path: Path) -> None:
    card = ROOT / "configs" / "spice" / "atlas.toml"

    def checked(length: int) -> Any:
        limits = (f"rollout.max_length={length}", f"learner.buckets=[{length}]")
        return invoke("check", card, *(word for limit in limits for word in ("--set", limit)))

    some, none = checked(100), checked(60)
    assert some.exit_code == 0 and none.exit_code == 2
    assert (
        "ok     first prompts: role challenger, 8 of 84 to 105 tokens; 4 are too long for rollout.max_length = 100"
        in some.stdout
    )
    assert "room for 42 of a turn's 48 tokens in rollout.max_length = 100" in some.stdout
    assert "WRONG  first prompts: 8 of 84 to 105 tokens; 8 are too long for rollout.max_length = 60" in none.stdout


def test_a_model_without_a_chat_template_is_wrong(tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").unlink()
    result = invoke("check", ROOT / "configs" / "ssp" / "atlas.toml", "--set", f"model.checkpoint={tmp_path / 'base'}")
    assert result.exit_code == 2
    assert "WRONG  tokenizer and template: the tokenizer has no chat template; set model.chat_template" in result.stdout


def test_a_fault_that_two_parts_meet_is_told_once(tmp_path: Path) -> None:
    """The model's config.json is read for its tensors, and for the vocabulary."""
    shutil.copytree(BASE, tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "base" / "config.json").write_text(json.dumps(config | {"hidden_size": "x"}), encoding="utf-8")
    result = invoke("check", ROOT / "configs" / "ssp" / "atlas.toml", "--set", f"model.checkpoint={tmp_path / 'base'}")
    assert result.exit_code == 2 and result.stdout.count("WRONG") == result.stdout.count("hidden_size") == 1
    assert "1 of 11 parts" in result.stderr


def test_a_new_card_that_is_wrong_does_not_stand_in_the_way(tmp_path: Path) -> None:
    card, corpus = tmp_path / "a.toml", ATLAS / "corpus.jsonl"
    words = ("new", card, "--game", "ssp", "--model", BASE, "--corpus", corpus, *short("ssp"), "--data")
    wrong = invoke(*words, tmp_path / "none.jsonl")
    assert wrong.exit_code == 2 and "WRONG  data: " in wrong.stdout and not card.exists()
    assert "cannot be used, see above; the card is not kept." in wrong.stderr and "is written" not in wrong.stderr
    right = invoke(*words, ATLAS / "answers.jsonl")
    assert right.exit_code == 0 and card.is_file() and f"{card} is written" in right.stderr.replace("\n", "")
    said = "a search is written <search>query</search> (model.dialect = xml), and the result follows as plain text"
    assert f"ok     turns: {said} (model.turns = raw)" in right.stdout


def test_new_writes_a_card_that_check_accepts(tmp_path: Path) -> None:
    card = tmp_path / "my card.toml"
    files = ("--model", BASE, "--data", ATLAS / "answers.jsonl", "--corpus", ATLAS / "corpus.jsonl", *short("ssp"))
    result = invoke("new", card, "--game", "ssp", *files, "--exam", ATLAS / "questions_held_out.jsonl", "--steps", 7)
    assert result.exit_code == 0, result.output
    cfg = load_card(card)
    assert (cfg.system, cfg.train.steps, cfg.model.checkpoint) == ("ssp", 7, str(BASE))
    assert cfg.rollout.max_length <= 4096 and "WRONG" not in result.output
    lines = result.stdout.splitlines()
    assert any(line.startswith("ok     data: ") for line in lines)
    assert any(line.startswith("ok     exam held_out: ") for line in lines)
    (prompts,) = [line for line in lines if line.startswith("ok     first prompts: role proposer")]
    assert int(re.findall(r"256 of (\d+) ", prompts)[0]) < 64  # without a schema of the search
    (command,) = [line for line in card.read_text(encoding="utf-8").splitlines() if line.startswith("# Command:")]
    assert shlex.split(command)[2:] == ["scope-jax", "train", str(card), "--run", "runs/my card"]
    again = invoke("new", card, "--game", "ssp", *files)
    assert again.exit_code == 2 and "exists" in again.stderr
    none = invoke("new", tmp_path / "b.toml", "--game", "ssp", "--model", tmp_path, *files[2:])
    assert none.exit_code == 2 and not (tmp_path / "b.toml").exists()


@pytest.mark.slow
def test_a_new_card_and_its_files_can_be_moved_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "my").mkdir(parents=True)
    for name in ("answers.jsonl", "corpus.jsonl"):
        shutil.copy(ATLAS / name, old / "my" / name)
    shutil.copytree(BASE, old / "model")  # without a slash: it could be a name, and its absolute path is kept
    monkeypatch.chdir(old)
    files = ("--model", "model", "--data", "my/answers.jsonl", "--corpus", "my/corpus.jsonl", *short("ssp"))
    assert invoke("new", "my/card.toml", "--game", "ssp", *files, "--steps", 1).exit_code == 0
    old.rename(new)
    monkeypatch.chdir(tmp_path)
    cfg = load_card(new / "my" / "card.toml")
    assert cfg.data.answers == str(new / "my/answers.jsonl") and cfg.model.checkpoint == str(old / "model")
    assert cfg.retrieval is not None and cfg.retrieval.corpus == str(new / "my/corpus.jsonl")


def test_runs_lists_what_is_done(tmp_path: Path) -> None:
    cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml")
    for step in (1, 2):
        RunFolder(tmp_path / "a", cfg).metrics(step, {"solver/reward": 0.5})
    (tmp_path / "a" / "metrics.jsonl").open("a").write('{"step": 3, "sol')
    (found,) = json.loads(invoke("runs", tmp_path, "--json").stdout)
    assert (found["run"], found["game"], found["steps"], found["of"]) == (str(tmp_path / "a"), "ssp", 2, 8)
    assert invoke("runs", tmp_path).stdout.startswith(f"{tmp_path / 'a'}  ssp  2 of 8 steps  20")
    assert "there is no run" in invoke("runs", tmp_path / "a").stderr


def test_check_names_everything_that_is_wrong(tmp_path: Path) -> None:
    card = tmp_path / "bad.toml"
    card.write_text(
        'system = "ssp"\n[model]\ncheckpoint = "none"\n'
        f'[retrieval]\nurl = "http://127.0.0.1:9/retrieve"\ntimeout = 1.0\n[data]\nanswers = "{tmp_path}/none.jsonl"\n'
        '[train]\nsteps = 1\n[judge]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\nretries = 0\n'
    )
    result = invoke("check", card)
    assert result.exit_code == 2
    wrong = [line.split()[1].rstrip(":") for line in result.stdout.splitlines() if line.startswith("WRONG")]
    assert wrong == ["model", "tokenizer", "data", "search", "model"]
    assert "5 of 7 parts of" in result.stderr


def test_a_card_is_found_from_its_folder_and_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml")
    assert cfg.model.checkpoint == str(BASE) and cfg.retrieval is not None
    assert cfg.retrieval.corpus == str(ATLAS / "corpus.jsonl")
    (tmp_path / "assets/atlas/ssp/base").mkdir(parents=True)  # the current folder comes first
    assert load_card(ROOT / "configs" / "ssp" / "atlas.toml").model.checkpoint == "assets/atlas/ssp/base"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train"], "scope-jax: missing argument 'CARD'; see scope-jax train --help.\n"),
        (["train", "c.toml"], "scope-jax: missing option '--run'; see scope-jax train --help.\n"),
        (["tain"], "scope-jax: no such command 'tain'; did you mean 'train'? See scope-jax --help.\n"),
        (["--bogus"], "scope-jax: no such option: --bogus; see scope-jax --help.\n"),
    ],
)
def test_a_wrong_use_is_one_sentence(words: list[str], sentence: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stderr, result.stdout) == (2, sentence, "")


def test_version_and_completion() -> None:
    assert invoke("--version").stdout == f"scope-jax {__version__}\n"
    asked = {"_SCOPE_JAX_COMPLETE": "complete_bash", "COMP_WORDS": "scope-jax se", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'scope-jax'; from scope_jax.cli import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert sorted(done.stdout.split()) == ["search", "selftest", "serve"]


def test_a_list_of_cards_imports_no_library_that_computes_or_reads_data() -> None:
    """The options of a game come with its rules; what these need to play waits until they play."""
    command = [sys.executable, "-X", "importtime", "-m", "scope_jax", "cards"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "pydantic" in imported and "ssp/atlas" in done.stdout
    assert not imported & {"jax", "datasets", "pyarrow", "transformers", "tokenizers", "scipy", "sklearn"}


@pytest.mark.slow
def test_export_imports_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys, scope_jax.run.convert;"
        "print([n for n in ('scope_jax.report.page', 'scope_jax.learner.learner') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_shipped_card_is_found_by_its_name_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named, path = load_card("ssp/atlas"), load_card("configs/ssp/atlas.toml")
    assert named == path == load_card(ROOT / "configs" / "ssp" / "atlas.toml") and named.system == "ssp"
    (tmp_path / "ssp").mkdir()
    (tmp_path / "ssp" / "atlas").write_text('extends = "nothing.toml"\n')
    with pytest.raises(CardError, match=r"nothing\.toml"):  # a file of that name comes first
        load_card("ssp/atlas")


def test_new_refuses_rows_whose_answers_no_grader_reads(tmp_path: Path) -> None:
    """GSM8K as it is published, and as `scope-jax data` converts it."""
    rows = [
        {"question": f"{n} apples and {n} more?", "answer": f"{n} + {n} = <<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n}"}
        for n in range(120)
    ]
    raw, data, card = tmp_path / "raw.jsonl", tmp_path / "gsm8k.jsonl", tmp_path / "card.toml"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ("new", card, "--game", "rlvr", "--model", ATLAS / "spice" / "base", "--max-length", 256, "--data")
    refused = invoke(*words, raw)
    assert refused.exit_code == 2 and not card.exists()
    assert "WRONG  answers: 70 of 70 rows have no answer that the grader math reads" in refused.stdout
    assert "convert the file by `scope-jax data gsm8k OUT.jsonl --source FILE`" in refused.stdout
    assert invoke("data", "gsm8k", data, "--source", raw).exit_code == 0
    found = invoke(*words, data)
    assert found.exit_code == 0, found.output
    assert "ok     exam held_out: 50 rows" in found.stdout
    assert "ok     answers: 70 rows, whose answers math reads\n       | " in found.stdout
    assert "       | Put the final answer into \\boxed{}.\n       | [answer] " in found.stdout
    assert load_card(card).options(RLVRSection).place == "boxed"
