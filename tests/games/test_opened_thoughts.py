"""A template that opens the thought makes no difference: in all games a reply is judged as it is written, with the
mark that the prompt has written of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scope_jax.environments import functions
from scope_jax.errors import UserError
from scope_jax.games import GAMES
from scope_jax.play.game import play_step
from scope_jax.rollouts.types import Completion
from scope_jax.text.parsing import THOUGHT
from tests.games import (
    dr_zero_world,
    harness,
    r_zero_world,
    rlvr_world,
    scope_world,
    score_world,
    spell_world,
    spice_world,
    test_absolute_zero_golden,
    test_absolute_zero_rules,
    test_spice_golden,
    test_spiral_golden,
)
from tests.games.harness import Characters, Script, TurnContext, sampled_turn
from tests.games.test_thoughts import Thinking, outcomes

ROOT = Path(__file__).parents[2]
QUOTED = "<answer>no</answer> <question>no</question> \\boxed{9} <search>Nile</search> The correct answer is 9."


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    service = functions.service(test_absolute_zero_rules.card().sandbox)
    try:
        service.start()
    except UserError as error:
        pytest.skip(str(error))
    yield
    service.close()


def written(script: Script, opened: bool) -> Script:
    """The script, whose turns begin with a thought; of what a template writes the policy writes nothing.

    Scripts read the prompt without the marks of the roles.
    """

    def say(ctx: TurnContext) -> str:
        bare = ctx.prompt.removesuffix("<think>\n").rstrip("\3\17").lstrip("\16\22").replace("\3\16", "\n\n")
        text = script(replace(ctx, prompt=bare))
        whole = text if text.lstrip().startswith(THOUGHT[0]) else f"<think>well, {QUOTED}</think>{text}"
        return whole.lstrip().removeprefix(THOUGHT[0]) if opened else whole

    return say


def absolute_zero(now: TurnContext) -> str:
    """The identity is answered in a thought that is never closed."""
    if now.role == "solve" and "return a" in now.prompt:
        return "<think>2 <answer>2</answer>"
    return test_absolute_zero_golden.script(now)


def dr_zero() -> dr_zero_world.Plan:
    searched = (dr_zero_world.searching_turn("Aareville"), dr_zero_world.pair("Which colour has it?", "blue"))
    return dr_zero_world.Plan(
        {("Aare", 0): searched, ("Bern", 0): ("<think><question>a</question><answer>b</answer>",)}
    )


def r_zero() -> r_zero_world.Plan:
    replies = {"0": [r_zero_world.asked("3 + 4"), "<think>5 <question>5 + 5</question>"]}
    replies["1"] = [r_zero_world.asked("5 + 5"), "nothing"]
    said = {"3 + 4": r_zero_world.said(7, 7, 8, 9), "5 + 5": r_zero_world.said(9, 10, 9, None)}
    return r_zero_world.Plan(replies, said, {"3 + 4": r_zero_world.said(7, 8)})


def rlvr(script: Script, **fields: Any) -> harness.ScriptedTools:
    return harness.ScriptedTools(script, data=rlvr_world.ROWS, **fields)


def solver_of_r_zero(cfg: Any) -> dict[str, Any]:
    return GAMES["r_zero"].start(cfg) | {"phase": "solver", "items": [{"question": "3 + 4", "label": "7"}]}


# By name: card, script, tools with it, memory before the step (None: the game's start), and a metric that is above 0.
World = tuple[Any, Script, Callable[..., Any], Any, str]


def worlds() -> dict[str, World]:
    azero = test_absolute_zero_rules.card(batch=2, seeds=5, inputs=4, estimates=4, references=2)
    ruled = r_zero_world.card(format_weight=0.1)
    return {
        "absolute_zero": (azero, absolute_zero, harness.ScriptedTools, {}, "solve_deduction/format"),
        "dr_zero": (dr_zero_world.card(), dr_zero(), dr_zero_world.world, None, "proposer/think"),
        "r_zero": (ruled, r_zero(), r_zero_world.world, None, "challenger/valid"),
        "r_zero, solver": (ruled, r_zero(), r_zero_world.world, solver_of_r_zero(ruled), "solver/reward"),
        "rlvr": (rlvr_world.card(), rlvr_world.replying(["\\boxed{2}"], ["4"]), rlvr, None, "policy/reward"),
        "score": (score_world.card(), score_world.Plan(), score_world.world, None, "solver/report"),
        "spell": (spell_world.card(), spell_world.PLAN, spell_world.world, None, "responder/reward"),
        "spice": (spice_world.card(), test_spice_golden.mixed(), spice_world.world, None, "reasoner/reward"),
        "spiral": (
            test_spiral_golden.card(turns=7, sampling={"max_tokens": 400, "max_response_tokens": 9000}),
            test_spiral_golden.lowest,
            harness.ScriptedTools,
            None,
            "tictactoe_first/valid",
        ),
        "ssp": (harness.card(format="think"), harness.Plan(), harness.world, {"pool": []}, "proposer/valid"),
    }


def played(world: World, name: str, opened: bool) -> tuple[list[Any], dict[str, float]]:
    cfg, script, tools, memory, _ = world
    scripted = tools(written(script, opened), turns="chat", codec=Thinking() if opened else Characters())
    game = GAMES[name.partition(",")[0]]
    if name == "ssp":
        scripted.given = harness.ITEMS
    episodes, _, metrics = play_step(game, cfg, scripted, game.start(cfg) if memory is None else memory, 0)
    return episodes, metrics


@pytest.mark.parametrize("name", worlds())
def test_an_opened_thought_makes_no_difference(name: str) -> None:
    world = worlds()[name]
    plain, opened = (played(world, name, opened) for opened in (False, True))
    assert outcomes(opened[0]) == outcomes(plain[0])
    lengths = ("response_tokens", "response_length")
    assert all(opened[1][key] == value for key, value in plain[1].items() if not key.endswith(lengths))
    assert plain[1][world[4]] > 0
    turns = [turn for one in opened[0] for turn in one.text.get("turns", ())]
    texts = [turn["text"] for turn in turns if turn["kind"] == "sampled"]
    assert texts and not any(text.startswith(THOUGHT[0]) for text in texts), "the prompt has written the mark"


# Scope's worlds are in tests/games/test_thoughts.py, with templates that open thoughts and others.
ANSWERS = {
    "absolute_zero": ("<answer>2</answer>", test_absolute_zero_rules.card),
    "dr_zero": ("<answer>2</answer>", dr_zero_world.card),
    "r_zero": ("\\boxed{2}", r_zero_world.card),
    "rlvr": ("\\boxed{2}", rlvr_world.card),
    "scope": ("<answer>2</answer>", scope_world.card),
    "score": ("<answer>2</answer>", score_world.card),
    "spell": ("The correct answer is 2", spell_world.card),
    "spice": ("\\boxed{2}", spice_world.card),
    "spiral": ("\\boxed{2}", test_spiral_golden.card),
    "ssp": ("<answer>2</answer>", harness.card),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_exams_read_what_follows_the_thought(name: str) -> None:
    answer, card = ANSWERS[name]
    read = GAMES[name].exam_of(card()).read

    def said(text: str, opened: bool) -> str | None:
        return read(Completion((), (sampled_turn(text, opened=opened),), "eos"))

    assert said(f"so {QUOTED}</think>{answer}", True) == "2"
    assert said(f"<think>so {QUOTED}</think>{answer}", False) == "2"
    assert said(f"so {QUOTED}", True) is None
    assert said(f"<think>so {QUOTED}", False) is None


def test_what_is_written_and_its_content() -> None:
    turns = sampled_turn("a</think>b", opened=True), sampled_turn("c"), replace(sampled_turn("d"), kind="observation")
    whole = Completion((), turns, "eos")
    assert (whole.text, whole.content) == ("<think>a</think>bcd", " " * len("a</think>") + "bc")
    unmarked = replace(sampled_turn("a</think>b", opened=True), thought=None)  # with model.tags_in_thinking
    assert (unmarked.written, unmarked.content) == ("<think>a</think>b", "a</think>b")


def test_nobody_judges_a_turn_without_its_mark() -> None:
    """`Turn.text` lacks the mark that the prompt opened: of games, exams and play only what works with places in it
    reads it, and what reads an observation. `Completion.text` has the mark."""
    allowed = {"play/turns.py", "play/tool_turns.py", "play/searching.py", "games/scope/rules.py"}
    readers = set()
    for folder in ("games", "evaluation", "play"):
        for path in (ROOT / "scope_jax" / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if re.search(r"\bturns?\b.*\.text\b", text) else ():
                named = ast.unparse(node.value) if isinstance(node, ast.Attribute) and node.attr == "text" else ""
                if re.search(r"\bturns?\b", named):
                    readers.add(path.relative_to(ROOT / "scope_jax").as_posix())
    assert readers <= allowed
