"""The games of examples/: their rules, a step with scripted policies, and their cards."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import open_games
from scope_jax import train
from scope_jax.config import Config
from scope_jax.games import find, game_of, load_card
from scope_jax.play.game import services_of
from scope_jax.report.progress import Progress
from tests.games.harness import ScriptedTools, TurnContext, play_step
from tests.train import runs

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SEATS = ("first", "second")


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rules() -> Any:
    find(str(EXAMPLES / "kuhn_poker.py"))  # which imports them
    return sys.modules["kuhn_rules"]


def test_each_game_has_under_120_lines() -> None:
    for file in EXAMPLES.glob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) < 120, file.name


# ----------------------------------------------------------------------------------------------------------- the solver
LONG = "{ max_tokens = 64, max_response_tokens = 4096 }"  # in characters


@pytest.fixture
def solver() -> Iterator[tuple[Config, ScriptedTools]]:
    """A card with four answers to a question, and tools with the game's own Python."""
    cfg = load_card(
        "examples/python_solver.toml",
        ["python_solver.questions=1", "python_solver.samples=4", f"python_solver.sampling={LONG}"],
    )
    own = game_of(cfg).tools(cfg)
    for service in services_of(own):
        service.start()
    says = [
        ["<python>x = 17*48</python>", "<python>x + 1</python>", r"\boxed{817}"],
        [r"\boxed{ 817.0 }"],
        ["<python>17*</python>", r"\boxed{0}"],
        ["<python>1</python>", "<python>2</python>", "<python>3</python>", "<python>4</python>"],
    ]
    yield (
        cfg,
        ScriptedTools(
            lambda now: says[now.sample][now.turn] + "\3", turns="chat", toolbox={tool.name: tool for tool in own}
        ),
    )
    for service in services_of(own):
        service.close()


def test_the_solver_runs_code_and_is_graded(solver: tuple[Config, ScriptedTools]) -> None:
    cfg, tools = solver
    row = {"question": "Compute 17*48+1", "answers": ["817"]}
    episodes, memory, metrics = play_step(game_of(cfg), cfg, tools, {}, [row], 0)
    assert memory == {} and [episode.reward for episode in episodes] == [1.0, 1.0, 0.0, 0.0]
    assert [episode.parts["ran"] for episode in episodes] == [1.0, 0.0, 1.0, 1.0]
    assert metrics["solver/reward"] == 0.5 and metrics["solver/ran"] == 0.75
    read = [turn["text"] for turn in episodes[0].text["turns"] if turn["kind"] != "sampled"]
    assert len(read) == 2 and "817" in read[1], "variables live through an episode"
    assert "SyntaxError" in episodes[2].text["turns"][1]["text"]
    assert [episode.text["prediction"] for episode in episodes] == ["817", "817.0", "0", None]
    assert {episode.group for episode in episodes} == {"solver/0"}


def test_what_the_solver_calls_is_declared_and_counted(solver: tuple[Config, ScriptedTools]) -> None:
    cfg, tools = solver
    play_step(game_of(cfg), cfg, tools, {}, [{"question": "Compute 17*48+1", "answers": ["817"]}], 0)
    exam = game_of(cfg).exam_of(cfg)
    assert exam.role.agent.tools == ("python",) and exam.role.agent.max_turns == 4 and "ran" in exam.own


# ------------------------------------------------------------------------------------------------------------ the poker
def kuhn_card(name: str = "kuhn_poker", *overrides: str) -> Config:
    return load_card(f"examples/{name}.toml", ["kuhn_poker.hands=1", f"kuhn_poker.sampling={LONG}", *overrides])


PAYOFFS = {  # of the first player by the moves, if its card is higher and if it is lower
    ("check", "check"): (1, -1),
    ("bet", "call"): (2, -2),
    ("bet", "fold"): (1, 1),
    ("check", "bet", "call"): (2, -2),
    ("check", "bet", "fold"): (-1, -1),
}


def test_all_hands_end_and_pay_by_the_rules() -> None:
    kuhn = rules()
    ends = [moves for length in (2, 3) for moves in product(("check", "bet", "call", "fold"), repeat=length)]
    reached = [
        moves
        for moves in ends
        if moves not in kuhn.LEGAL
        and all(moves[:turn] in kuhn.LEGAL and move in kuhn.LEGAL[moves[:turn]] for turn, move in enumerate(moves))
    ]
    assert sorted(reached) == sorted(PAYOFFS)
    for cards in kuhn.DEALS:
        higher = "JQK".index(cards[0]) > "JQK".index(cards[1])
        for moves, (if_higher, if_lower) in PAYOFFS.items():
            first = if_higher if higher else if_lower
            assert kuhn.won(cards, moves) == [first, -first], (cards, moves)


def equilibrium(alpha: float) -> dict[Any, dict[str, float]]:
    """Kuhn's: both players', by the first one's chance to bet with a jack (0 to 1/3)."""
    bets = {("J", ()): alpha, ("Q", ()): 0.0, ("K", ()): 3 * alpha}
    bets |= {("J", ("check",)): 1 / 3, ("Q", ("check",)): 0.0, ("K", ("check",)): 1.0}
    calls = {("J", ("bet",)): 0.0, ("Q", ("bet",)): 1 / 3, ("K", ("bet",)): 1.0}
    calls |= {("J", ("check", "bet")): 0.0, ("Q", ("check", "bet")): alpha + 1 / 3, ("K", ("check", "bet")): 1.0}
    strategy = {place: {"bet": chance, "check": 1 - chance} for place, chance in bets.items()}
    return strategy | {place: {"call": chance, "fold": 1 - chance} for place, chance in calls.items()}


def test_the_exact_values_are_those_that_kuhn_computed() -> None:
    kuhn = rules()
    for alpha in (0.0, 0.1, 1 / 3):
        players = [equilibrium(alpha)] * 2
        assert kuhn.per_hand(0, players, 1.5) == pytest.approx(-1 / 18)
        assert kuhn.best_responses(players, 1.5) == pytest.approx([-1 / 18, 1 / 18])
    drawn = {(card, moves): dict.fromkeys(kuhn.LEGAL[moves], 0.5) for card in "JQK" for moves in kuhn.LEGAL}
    assert kuhn.against_random([drawn, drawn], 1.5) == pytest.approx([1 / 8, -1 / 8])
    assert kuhn.best_responses([drawn, drawn], 1.5) == pytest.approx([1 / 2, 5 / 12])
    silent = {place: {} for place in drawn}
    assert kuhn.against_random([silent, silent], 1.5) == pytest.approx([-1.5, -1.5])


def scripted(now: TurnContext) -> str:
    """Checks, and calls every bet; a king bets, a queen in the second seat says nothing that counts."""
    own = now.prompt.split("Your card is ")[1][0]
    legal = now.turns[-1].text if now.turns else now.prompt
    if own == "K":
        return r"\boxed{bet}" if "or bet" in legal else r"\boxed{call}"
    if own == "Q" and "check" in now.prompt.split("so far:")[1].split(".")[0]:
        return "I pass"
    return r"\boxed{check}" if "or bet" in legal else r"\boxed{call}"


@pytest.mark.parametrize("name", ["kuhn_poker", "kuhn_two_policies", "kuhn_adapters"])
def test_hands_of_kuhn_poker(name: str) -> None:
    cfg = kuhn_card(name)
    policies = game_of(cfg).policies(cfg)
    tools = ScriptedTools(scripted, turns="chat", known_policies=policies)
    episodes, memory, metrics = play_step(game_of(cfg), cfg, tools, {}, [], 0)
    assert memory == {}
    assert {episode.role: episode.policy for episode in episodes} == dict(zip(SEATS, policies * 2, strict=False))
    hands: dict[str, Any] = {}
    for episode in episodes:
        hands.setdefault(episode.text["cards"], (episode.text["moves"], {}))[1][episode.role] = episode.reward
    assert hands == {
        "JQ": (["check", "None"], {"first": 0.0, "second": -1.5}),
        "JK": (["check", "bet", "call"], {"first": -2.0, "second": 2.0}),
        "QJ": (["check", "check"], {"first": 1.0, "second": -1.0}),
        "QK": (["check", "bet", "call"], {"first": -2.0, "second": 2.0}),
        "KJ": (["bet", "call"], {"first": 2.0, "second": -2.0}),
        "KQ": (["bet", "call"], {"first": 2.0, "second": -2.0}),
    }
    assert metrics["first/reward"] == pytest.approx(1 / 6) and metrics["second/reward"] == pytest.approx(-2.5 / 6)
    trained = {update.policy: [share.role for share in update.roles] for update in game_of(cfg).updates(cfg)}
    assert trained == (
        {"actor": ["first", "second"]} if len(policies) == 1 else {policies[0]: ["first"], policies[1]: ["second"]}
    )
    assert all(update.card.advantage == "ema" for update in game_of(cfg).updates(cfg))


# ------------------------------------------------------------------------------------------------------------ the cards
@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the cards and a model with random weights."""
    folder = tmp_path_factory.mktemp("open-games")
    with pytest.MonkeyPatch.context() as patch:
        for name, count in (("SHOWN", 40), ("DEALT", 10), ("TRAINED", 8), ("HELD_OUT", 4)):
            patch.setattr(open_games, name, count)
        open_games.build(folder)
    return folder


def trained(built: Path, name: str, **more: str) -> list[dict[str, Any]]:
    """The metrics of a run of one step with the built model and data."""
    sets = {"model.checkpoint": str(built / "initial"), "train.steps": "1", **more}
    if name == "base":
        sets |= {"data.conversations": str(built / "conversations.jsonl"), "train.batch_size": "8"}
    elif name == "python_solver":
        sets |= {"data.questions": str(built / "expressions.jsonl"), "python_solver.questions": "2"}
    file = "expressions_held_out" if name == "python_solver" else "situations"
    if name != "base":
        sets["evaluate.sets"] = f'[{{name="rows", path="{built / file}.jsonl"}}]'
    cfg = load_card(f"examples/{name}.toml", [f"{key}={value}" for key, value in sets.items()])
    with Progress(Console(quiet=True)) as progress:
        train.train(cfg, built / "runs" / name, progress)
    return runs.lines(built / "runs" / name, "metrics.jsonl")


@pytest.mark.slow  # train/test_given_answers.py compares such a step with torch
def test_a_step_of_the_base(built: Path) -> None:
    assert trained(built, "base")[-1]["sft/too_long"] == 0


@pytest.mark.slow
def test_a_step_of_the_solver(built: Path) -> None:
    first, step = trained(built, "python_solver")
    assert first["eval/rows/accuracy"] == 0.0 and 0 <= first["eval/rows/ran"] <= 1
    assert step["solver/reward"] == 0.0 and step["solver/sequences"] == 16


def test_a_step_of_poker(built: Path) -> None:
    """The random model fouls, and its exam knows: against players that draw legal actions it loses almost `foul`."""
    first, step = trained(built, "kuhn_poker", **{"kuhn_poker.hands": "2"})
    assert first["eval/rows/won"] == pytest.approx(-1.5, abs=0.1)
    assert 0 <= first["eval/rows/exploitable"] <= 1.5
    assert step["first/reward"] == pytest.approx(-1.5, abs=0.2)
    assert step["first/baseline"] == pytest.approx(0.05 * step["first/reward"])
    assert step["first+second/grad_norm"] > 0


def test_the_page_quotes_the_games() -> None:
    """Every line of Python on the page stands in a file of examples/, and the cards that it names are there."""
    page = (ROOT / "docs" / "tutorial_tools.md").read_text(encoding="utf-8")
    written = {line.strip() for file in EXAMPLES.glob("*.py") for line in file.read_text(encoding="utf-8").splitlines()}
    quoted = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)).splitlines()
    assert len(quoted) > 10 and not [line for line in quoted if line.strip() not in written]
    cards = re.findall(r"examples/\w+\.toml", page)
    assert len(cards) > 5 and all((ROOT / card).is_file() for card in cards)
