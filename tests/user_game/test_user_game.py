"""A user's own game in one file: two roles in one update, no retrieval, draws until full, an exam with pass@k."""

from __future__ import annotations

import json
import shutil
import string
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scope_jax import train
from scope_jax.config import CardError, Config, JudgeSection, LossCard, SamplingSection
from scope_jax.errors import UserError
from scope_jax.games import find, game_of, load_card, load_data
from scope_jax.learner.types import Episode
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import declare
from scope_jax.models.files.weights import save_hf
from scope_jax.play.checks import check_played, check_roles
from scope_jax.play.collapse import LENGTHS
from scope_jax.play.game import play_step
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played
from scope_jax.report.page import write_report
from scope_jax.report.progress import Progress
from scope_jax.run.config_file import to_toml
from scope_jax.run.watch import roles_without_update
from scope_jax.serving.assemble import card_of
from scope_jax.sharding.spec import init_params
from tests.games.harness import ScriptedTools
from tests.learner.conftest import TINY
from tests.shapes import like
from tests.train import runs

GAME = Path(__file__).with_name("coordination.py")
TEMPLATE = (
    "{% for m in messages %}<|s|>{{ m.role }} {{ m.content }}<|e|>{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant {% endif %}"
)
MODEL = like(TINY, vocab_size=272, num_layers=1, tie_embeddings=False)
CARD = """
system = "{game}"
[model]
checkpoint = "{folder}/base"
compute_dtype = "float32"
[rollout]
slots = 32
max_length = 128
decode_steps = 2
[learner]
buckets = [256]
micro_batch_rows = 16
remat = "none"
[optimizer]
learning_rate = 0.02
warmup_steps = 0
[data]
answers = "{folder}/train.jsonl"
[[evaluate.sets]]
name = "held_out"
path = "{folder}/held_out.jsonl"
samples = 4
temperature = 1.0
[evaluate]
max_tokens = 1
every = 10
[train]
steps = 20
save_every = 10
[coordination]
rows = 6
most_draws = 3
guesses = 8
loss = {{ advantage = "group-mean", kl = "none", aggregation = "token-mean" }}
"""


def prepare(folder: Path, model: ModelConfig = MODEL) -> None:
    """Writes a random model that mostly writes letters, lists for training, others for evaluation, and card.toml."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|s|>", "<|e|>", "<|p|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|e|>", pad_token="<|p|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder / "letters")
    params = jax.jit(lambda: init_params(declare(model), jax.random.key(0)))()
    # the first coordinate is about the same for every token, and adds about 5 to the logits of letters
    params["embed"]["table_VD"] = params["embed"]["table_VD"].at[:, 0].set(1.0)
    ids = np.asarray(fast.convert_tokens_to_ids([*string.ascii_lowercase]))
    params["head"]["table_VD"] = params["head"]["table_VD"].at[ids, 0].set(5 / model.width**0.5)
    save_hf(folder / "base", model, params, jnp.float32, folder / "letters")
    lists = ["abcde", "aeiou", "axyzm", "stare", "ladeg", "bacon", "fruta", "pqrsa", "aghij", "kaleb"]
    rows = [{"question": "which", "answers": list(letters)} for letters in lists]
    for name, own in (("train", rows[:8]), ("held_out", rows[8:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own), encoding="utf-8")
    (folder / "card.toml").write_text(CARD.format(game=GAME, folder=folder), encoding="utf-8")


@pytest.mark.parametrize("data", [("max_searches",), ("prompts", "answers"), ("tasks",), ("readings",)])
def test_without_a_source_the_first_data_key_is_a_file_of_its_kind(data):
    game = find(str(GAME))
    with pytest.raises(UserError, match=r"coordination needs a `source`, or one of answers, questions, queries, "):
        replace(game, data=data)
    assert replace(game, data=data, source=lambda cfg: None).data == data
    for kind in ("answers", "questions", "queries", "documents", "clusters"):
        assert replace(game, data=(kind, "max_searches")).data[0] == kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("letters")
    prepare(folder)
    return folder


def run(folder: Path, name: str, *overrides: str) -> Path:
    with Progress(Console(quiet=True)) as progress:
        train.train(load_card(folder / "card.toml", overrides), folder / name, progress)
    return folder / name


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    return run(folder, "whole")


def test_it_is_trained_and_evaluated(folder: Path) -> None:
    """One step."""
    once = run(folder, "once", "train.steps=1")
    first, step = runs.lines(once, "metrics.jsonl")
    assert step["guesser/reward"] < 0.1 and step["eval/held_out/exact-match"] < 0.5
    assert first["eval/held_out/exact-match_pass@4"] >= first["eval/held_out/exact-match_pass@2"]
    assert step["rows/drawn"] == 18  # most_draws
    assert {"caller+guesser/grad_norm", "caller+guesser/clip_fraction"} <= set(step)
    assert {e["role"] for e in runs.lines(once, "episodes.jsonl")} == {"caller", "guesser"}
    assert write_report(once).is_file()


@pytest.mark.slow
def test_it_learns(whole: Path) -> None:
    first, *steps = runs.lines(whole, "metrics.jsonl")
    rewards = [line.get("guesser/reward", 0.0) for line in steps]
    assert sum(rewards[-3:]) / 3 > 0.9 > 0.1 > rewards[0]
    assert steps[-1]["eval/held_out/exact-match"] > 0.9 > 0.5 > first["eval/held_out/exact-match"]
    assert steps[-1]["rows/drawn"] == 6  # no wasted draws in the last step


@pytest.mark.slow
def test_it_resumes_with_the_same_bits_and_is_evaluated_where_it_was_stopped(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its tenth step, and later stopped before its last evaluation."""
    resumed = folder / "resumed"
    shutil.copytree(whole, resumed)
    shutil.rmtree(runs.saved_at(resumed, 20))
    with monkeypatch.context() as patched:
        patched.setattr(train, "evaluate", lambda world: ({}, {}))
        run(folder, "resumed")
    before, expected = runs.lines(resumed, "metrics.jsonl"), runs.lines(whole, "metrics.jsonl")
    scores = {name: value for name, value in expected[-1].items() if name.startswith("eval/")}
    assert scores and [*before[:-1], before[-1] | scores] == expected and not scores.keys() & before[-1].keys()
    left, right = runs.arrays(whole, 20), runs.arrays(resumed, 20)
    assert left.keys() == right.keys() and all(array.tobytes() == right[name].tobytes() for name, array in left.items())
    assert runs.memory(whole, 20) == runs.memory(resumed, 20)
    assert runs.lines(whole, "episodes.jsonl") == runs.lines(resumed, "episodes.jsonl")
    assert runs.memory(whole, 20)["game"]["drawn"] == sum(line["rows/drawn"] for line in expected[1:])
    run(folder, "resumed")
    *again, evaluated = runs.lines(resumed, "metrics.jsonl")
    assert again == before and {name: evaluated[name] for name in scores} == scores
    run(folder, "resumed")
    assert len(runs.lines(resumed, "metrics.jsonl")) == len(before) + 1, "once is enough"


def test_rows_are_drawn_until_the_step_is_full(folder: Path) -> None:
    """Every other caller names no letter: twelve rows for six letters."""
    cfg = load_card(folder / "card.toml")
    tools = ScriptedTools(
        lambda now: "a" if now.role == "guesser" or int(now.name) % 2 else "!",
        data=[{"answers": ["a", "b"]}, {"answers": ["a", "c"]}],
    )
    episodes, memory, metrics = play_step(game_of(cfg), cfg, tools, {"drawn": 30}, 0)
    assert tools.taken == [(30, 6), (36, 6)] and memory == {"drawn": 42}
    assert [e.reward for e in episodes if e.role == "caller"] == [0.0, 1.0] * 6
    expected = {"caller/valid": 0.5, "caller/reward": 0.5, "rows/drawn": 12.0, "guesser/reward": 1.0}
    lengths = {f"{role}/{name}" for role in ("caller", "guesser") for name in LENGTHS}
    assert metrics.keys() == expected.keys() | lengths and {name: metrics[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ('system="none.py"', "is none.py, which does not exist"),
        ('system="chess"', "is 'chess', which is not a game; give one of .*'scope', .*'ssp'"),
        (f'system="{__file__}"', "is not a game: it must define GAME"),
        ('retrieval.corpus="c.jsonl"', r"does not search; remove the table \[retrieval\]"),
        ("coordination.guesses=x", "`coordination.guesses` must be a whole number"),
        ("coordination.guess=3", "unknown key `coordination.guess`"),
        ("game.guesses=3", "unknown key `game`"),
    ],
)
def test_invalid_games_give_a_clear_error(folder: Path, change: str, complaint: str) -> None:
    with pytest.raises(CardError, match=complaint):
        updates(folder / "card.toml", change)


def test_a_file_that_ends_the_program_is_no_game(folder: Path, tmp_path: Path) -> None:
    """As a script that reads its own arguments; the command would end as if all was well."""
    (tmp_path / "script.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(CardError, match=r"script\.py ends the program when it is imported; put what it runs"):
        updates(folder / "card.toml", f'system="{tmp_path / "script.py"}"')


async def later() -> None:
    """A play that is not awaited."""


def episode(**changes: Any) -> Episode:
    fields = {"role": "guesser", "policy": "actor", "group": "g", "datums": (), "reward": 1.0}
    return Episode(**fields | changes)


def changed(given: Any, **fields: Any) -> Any:
    """The same object with fields of other types."""
    for name, value in fields.items():
        object.__setattr__(given, name, value)
    return given


def wrongly(**fields: Any) -> Played:
    """A step with a field of another type."""
    return changed(Played([]), **fields)


def with_episode(**fields: Any) -> Played:
    """A step whose second episode has these fields, perhaps of other types."""
    return Played([episode(), changed(episode(), **fields)])


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (Played([episode()], metrics={"guesser/reward": np.float32(1), "guesser/none": None}), ""),
        (([episode()], {}), "returned a tuple of 2; it is no async function or generator, and returns"),
        (None, "returned nothing; it is"),
        (wrongly(episodes=[{"reward": 1.0}]), "returned a dict among its episodes"),
        (wrongly(episodes=iter([])), "as its episodes; give a list"),
        (
            with_episode(reward=None),
            r"gave the episode 1 \(role 'guesser', group 'g'\) the reward None; g",
        ),
        (with_episode(reward=float("nan")), "the reward nan; give a finite number"),
        (
            with_episode(reward=np.float32(0.5), parts={"form": "good"}),
            "the part 'form' 'good'; give a finite numb",
        ),
        (
            with_episode(text={"seen": np.float32(1), "of": {1}}),
            "the text 'of', a set that no JSON has; give",
        ),
        (wrongly(metrics=["reward"]), "returned a list as metrics; return a dict"),
        (Played([episode()], metrics={"guesser/reward": "1.0"}), "returned '1.0' as the metric guesser/reward, not a"),
    ],
)
def test_what_play_may_return(returned: object, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) if complaint else nullcontext():
        check_played("coordination", returned)


def test_episodes_that_no_update_takes(folder: Path) -> None:
    cfg = load_card(folder / "card.toml")
    known = [episode(), episode(role="nobody", trained=False)]
    assert roles_without_update(known, game_of(cfg).updates(cfg)) == []
    wrong = [*known, episode(role="geusser"), episode(policy="solver"), episode(policy="solver")]
    first, second = roles_without_update(wrong, game_of(cfg).updates(cfg))
    assert "episodes of actor/geusser" in first and "updates train actor/caller, actor/guesser; correct" in first
    assert "episodes of solver/guesser" in second


LEARNS = Role("a", Agent("actor", SamplingSection()), loss=LossCard())
JUDGE = JudgeSection(url="http://127.0.0.1:9/v1", model="m")


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        ((LEARNS, Role("judge", JUDGE)), ""),
        (None, "roles of the game own returned nothing; it returns a tuple with a Role for each that speaks"),
        (LEARNS, "roles of the game own returned a Role; it returns a tuple"),
        ((LEARNS, "b"), "roles of the game own returned a tuple of 2; it returns a tuple with a Role"),
        ((LEARNS, LEARNS), "the game own has two roles of the name 'a'; give each its own"),
        (
            (changed(Role("a", JUDGE, loss=LossCard()), speaker=SamplingSection()),),
            "'a' of the game own is spoken by a SamplingSection; give an",
        ),
        (
            (Role("a", JUDGE, loss=LossCard()),),
            "an external model, which cannot be trained, speaks it; remove the loss",
        ),
        ((Role("a", Agent("actor", SamplingSection())),), "no role of the game own learns; give one a loss"),
        ((), "no role of the game own learns"),
    ],
)
def test_which_roles_a_game_may_list(listed: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) if complaint else nullcontext():
        check_roles("own", listed)


def test_play_is_no_async_function() -> None:
    coroutine = later()
    with pytest.raises(UserError, match="returned a coroutine; it is no async function"):
        check_played("coordination", coroutine)
    coroutine.close()


def updates(card: Path, change: str) -> object:
    cfg = load_card(card, [change])
    return game_of(cfg).updates(cfg)


def test_what_serves_and_exports_a_run_has_its_games_options(folder: Path) -> None:
    cfg = load_card(folder / "card.toml")
    run = folder / "served"
    run.mkdir()
    (run / "config.toml").write_text(to_toml(cfg), encoding="utf-8")
    served = card_of(run, None, ())
    assert isinstance(served, Config) and game_of(served).updates(served) == game_of(cfg).updates(cfg)  # of the options
    (run / "config.toml").write_text("system = []", encoding="utf-8")
    with pytest.raises(CardError, match="`system` must be text"):
        load_data(run / "config.toml")
