"""A step of Absolute Zero with a scripted policy and the real sandbox: seeding, proposals, rewards, buffers."""

from __future__ import annotations

from typing import Any

import pytest

from scope_jax.config import Config, LossCard, SamplingSection
from scope_jax.errors import UserError
from scope_jax.games.absolute_zero import messages, roles, seeding, state
from scope_jax.games.absolute_zero.game import GAME
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection, options
from scope_jax.games.absolute_zero.state import Task
from scope_jax.learner.advantages import assign
from scope_jax.learner.types import Episode
from scope_jax.play.exams import Answer
from scope_jax.play.game import play_step
from scope_jax.play.rollouts import Rollout
from scope_jax.play.step import Step
from scope_jax.text.messages import Messages
from tests.games.harness import ScriptedTools, TurnContext
from tests.games.test_absolute_zero_rules import THOUGHT, card, completions, proposed
from tests.games.test_absolute_zero_rules import sandbox as sandbox

SEEDS = ("def f(x): return x + {}", "def f(x): return x - {}")


def script(now: TurnContext) -> str:
    """Seeds differ by batch and place. In the step: in place 0 a good task, in place 1 one that is not valid. Of four
    answers the last one is wrong; those of the batch are right, but of a bad form for the identity."""
    place = int(now.name)
    if now.role.startswith("seeding"):
        batch = int(now.role.split()[2])
        if "inputs that together" in now.prompt:
            return proposed("", *map(str, range(batch, batch + 4)), message="seed")
        return proposed(SEEDS[place].format(batch + 1), "7") if batch else THOUGHT.format("nothing")
    if now.role == "propose":
        if place % 2:
            return proposed("def f(x): return missing", "1", message="m")
        if place == 4:
            return proposed("", "5", "6", "7", "8", message="new")
        return proposed(f"def f(x): return x * {place + 3}", "2")
    wrong = now.role == "estimate" and now.sample == 3
    if now.role == "solve" and "return a" in now.prompt:
        return "2"
    return "<think>t</think><answer>" + ("nothing" if wrong else right(now.prompt)) + "</answer>"


def right(prompt: str) -> str:
    """The answer to one of the solver's prompts, by running the program here."""
    after = {
        kind: prompt.split(f"```{kind}\n")[1].split("\n```")[0]
        for kind in ("python", "input", "output")
        if f"```{kind}\n" in prompt.split("Your reply begins")[0]
    }
    if "Find an input" in prompt:
        return "2" if "*" in after["python"] else "7"
    if "What does the function" in prompt:
        x, sign, y = after["python"].split("return ")[1].split()
        x = int(after["input"])
        return str({"*": x * int(y), "+": x + int(y), "-": x - int(y)}[sign])
    pairs = [int(after["output"]) - int(after["input"])]
    return f"```python\ndef f(x): return x + {pairs[0]}\n```"


def test_a_step() -> None:
    cfg = card(batch=2, seeds=5, inputs=4, estimates=4, references=2, buffer=6)
    tools = ScriptedTools(script)
    episodes, memory, metrics = play_step(GAME, cfg, tools, {}, 0)
    # seeding: the identity, no valid one in the first batch, then two in each
    programs = ["def f(a):\n    return a", *(one.format(n) for n in (2, 3) for one in SEEDS)]
    for kind in ("deduction", "abduction"):
        assert [item["program"] for item in memory[kind]][:5] == programs
        assert [item["outputs"] for item in memory[kind]][:5] == [["0"], ["9"], ["5"], ["10"], ["4"]]
    assert [item["step"] for item in memory["induction"]] == [0, 0, 0, 0, 0, 1]
    assert len({(item["program"], *item["inputs"]) for item in memory["induction"]}) == 6
    # proposals
    good = {"deduction": "def f(x): return x * 3", "abduction": "def f(x): return x * 5"}
    for kind, program in good.items():
        assert memory[kind][5] == {
            "program": program,
            "inputs": ["2"],
            "outputs": [str(2 * int(program[-1]))],
            "message": "",
            "step": 1,
        }
    assert memory["induction"][5]["inputs"] == ["5", "6", "7", "8"] and memory["induction"][5]["message"] == "new"
    by_role = {
        role: [one for one in episodes if one.role == role] for role in dict.fromkeys(one.role for one in episodes)
    }
    assert [*by_role] == [f"{kind}_{task}" for kind in ("propose", "solve") for task in options(cfg).tasks]
    for kind in ("deduction", "abduction", "induction"):
        first, second = by_role[f"propose_{kind}"]
        assert (first.reward, first.parts) == (0.25, {"valid": 1.0, "solved": 0.75})
        assert (second.reward, second.parts) == (-1.0, {"valid": 0.0})
        assert len(by_role[f"solve_{kind}"]) == 2
        assert by_role[f"solve_{kind}"][0].text["step"] == 1, "the new one comes first"
    rewards = [one.reward for one in episodes if one.role.startswith("solve")]
    assert set(rewards) <= {1.0, -1.0} and rewards.count(1.0) >= 3
    assert metrics["propose_deduction/valid"] == 0.5 and metrics["deduction/buffer"] == 6.0
    assert all(one.trained and one.policy == "actor" for one in episodes)
    assert len({(one.role, one.group) for one in episodes}) == len(episodes) == 12, "every episode is its own group"
    assert "def f(x): return x" in tools.prompts["propose", "0"] and "threading" in tools.prompts["propose", "0"]
    assert tools.agents["estimate"].max_prompt_tokens == 90_000
    # the next step forgets the oldest, and draws its problems as the card says
    _, later, _ = play_step(GAME, cfg, ScriptedTools(script), memory, 1)
    assert [item["step"] for item in later["deduction"]] == [0, 0, 0, 0, 1, 2] and len(memory["deduction"]) == 6
    before, _, _ = play_step(
        GAME, card(batch=2, inputs=4, estimates=4, references=2, solve="earlier"), ScriptedTools(script), memory, 1
    )
    solved = [one for one in before if one.role.startswith("solve")]
    assert {one.text["step"] for one in solved} == {0, 1} and all(one.text["step"] < 2 for one in solved)


def test_hidden_values_are_not_shown() -> None:
    cfg = card()
    item: Task = {
        "program": "def f(x): return x",
        "inputs": [*"123456"],
        "outputs": [*"abcdef"],
        "message": "m",
        "step": 0,
    }
    said = messages.for_solver(cfg, "induction", item).user
    assert "return x\n" not in said and all(f"\n{text}\n" in said for text in "123abc")
    assert not any(f"\n{text}\n" in said for text in "456def")
    one: Task = {"program": "def f(x): return x", "inputs": ["'in'"], "outputs": ["'out'"], "message": "", "step": 0}
    assert "'out'" not in messages.for_solver(cfg, "deduction", one).user
    assert "'in'" not in messages.for_solver(cfg, "abduction", one).user


def test_references_that_do_not_fit_are_left_out() -> None:
    long = [
        {**state.identity(1), "inputs": [f"'{'a' * 300}'"], "outputs": ["1"], "program": f"def f(x): return {n}"}
        for n in range(6)
    ]
    without = len(messages.for_proposer(card(), "deduction", []).text)
    for limit, least, most in ((3000, 1, 5), (without, 0, 0)):
        tools = ScriptedTools(lambda now: "nothing")
        play_step(GAME, card(batch=1, tasks=["deduction"], max_prompt_tokens=limit), tools, {"deduction": long}, 0)
        (prompt,) = [text for (role, _), text in tools.prompts.items() if role == "propose"]
        assert least <= prompt.count("aaa'") <= most and len(prompt) <= limit
    tools = ScriptedTools(lambda now: "nothing")
    play_step(GAME, card(batch=1, tasks=["deduction"], references=0), tools, {"deduction": long}, 0)
    assert "aaa'" not in tools.prompts["propose", "0"]


def test_a_right_answer_in_a_bad_form_counts_for_the_proposer_alone() -> None:
    """p is the share of right answers, of whatever form; the solver is paid for both."""

    def bare(now: TurnContext) -> str:
        said = script(now)
        return said.removeprefix("<think>t</think>") if now.role in ("estimate", "solve") else said

    cfg = card(batch=2, seeds=3, inputs=4, estimates=4, references=2)
    episodes, _, metrics = play_step(GAME, cfg, ScriptedTools(bare), {}, 0)
    for kind in ("deduction", "abduction", "induction"):
        good = next(one for one in episodes if one.role == f"propose_{kind}")
        assert (good.reward, good.parts["solved"]) == (0.25, 0.75)  # three of four
        assert metrics[f"solve_{kind}/reward"] == -1.0 and metrics[f"solve_{kind}/format"] == 0.0


def test_a_task_too_long_for_the_solvers_prompt_has_p_0_and_is_not_remembered() -> None:
    """As in the release; there is no other limit on a task's length."""
    long = f"def f(x):\n    # {'a' * 6000}\n    return x * 3"

    def script_with(limit: int) -> Any:
        cfg = card(
            batch=1, tasks=["deduction"], estimates=2, references=0, max_prompt_tokens=limit, extreme_reward=-0.5
        )
        tools = ScriptedTools(lambda now: proposed(long, "2") if now.role == "propose" else THOUGHT.format("6"))
        return play_step(GAME, cfg, tools, {"deduction": [state.identity(1)]}, 0)

    episodes, memory, _ = script_with(20_000)
    assert [item["program"] for item in memory["deduction"]][1:] == [long]
    assert (episodes[0].reward, episodes[0].parts["solved"]) == (-0.5, 1.0)
    episodes, memory, _ = script_with(4000)
    assert len(memory["deduction"]) == 1
    assert (episodes[0].reward, episodes[0].parts["solved"]) == (-0.5, 0.0)


def step_of(cfg: Config) -> Step[AbsoluteZeroSection]:
    """The first one, whose policy writes nothing."""
    speakers = {role.name: role for role in GAME.roles(cfg)}
    return Step(cfg, options(cfg), speakers, ScriptedTools(lambda now: ""), {}, 0)


def test_the_prompt_of_an_induction_about_every_remembered_program_fits() -> None:
    """One that the solver's prompt holds, but not the proposer's, is not remembered either."""
    cfg = card(batch=1)
    item: Task = {**state.identity(1), "program": f"def f(x):\n    # {'a' * 2000}\n    return x"}
    sizes = [
        len(messages.for_solver(cfg, "deduction", item).text),
        len(messages.for_proposer(cfg, "induction", [item]).text),
    ]
    assert sizes[0] < sizes[1]
    for kinds, limit, count in [
        (["deduction"], sizes[0], 1),
        (["deduction", "induction"], sizes[1] - 1, 0),
        (["deduction", "induction"], sizes[1], 1),
    ]:
        limited = card(batch=1, tasks=kinds, max_prompt_tokens=limit)
        step = step_of(limited)
        ((sample,),) = step.play("propose", [Rollout("0", Messages("?"))])
        proposal = state.TaskProposal("deduction", sample, draft=item, task=item)
        assert len(roles.tasks_to_remember(step, "deduction", [proposal])) == count


def test_a_base_that_writes_nothing_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "BATCHES", 3)
    with pytest.raises(
        UserError, match=r"wrote 1 valid tasks of deduction in 3 batches; lower absolute_zero\.seeds, 256"
    ):
        play_step(GAME, card(), ScriptedTools(lambda now: "nothing"), {}, 0)


def test_the_proposer_need_not_be_trained() -> None:
    cfg = card(batch=2, seeds=3, inputs=4, estimates=4, train="solver")
    episodes, _, _ = play_step(GAME, cfg, ScriptedTools(script), {}, 0)
    assert {one.role.split("_")[0]: one.trained for one in episodes} == {"propose": False, "solve": True}
    (update,) = GAME.updates(cfg)
    assert [share.role for share in update.roles] == ["solve_deduction", "solve_abduction", "solve_induction"]


def test_the_exam_grades_by_running() -> None:
    cfg = card()
    exam = GAME.exam_of(cfg)
    rows: list[dict[str, Any]] = [
        {"task": "deduction", "program": "def f(x): return x + 1", "inputs": ["1"], "outputs": ["2"], "message": ""},
        {"task": "abduction", "program": "def f(x): return abs(x)", "inputs": ["3"], "outputs": ["3"], "message": ""},
        {
            "task": "induction",
            "program": "def f(x): return x",
            "inputs": [*"1234"],
            "outputs": [*"1234"],
            "message": "",
        },
        {
            "task": "induction",
            "program": "def f(x): return x",
            "inputs": [*"1234"],
            "outputs": [*"1234"],
            "message": "",
        },
        {"task": "deduction", "program": "def f(x): return x + 1", "inputs": ["1"], "outputs": ["2"], "message": ""},
    ]
    replies = ["2.0", "-3", "```python\ndef f(x): return x\n```", "```python\ndef f(x): return x if x < 4 else 0\n```"]
    said = completions([*(f"<think>t</think><answer>{reply}</answer>" for reply in replies), "2"])
    answers = [
        Answer(row, exam.prompt(row, len), one, exam.read(one), None, 0, SamplingSection())
        for row, one in zip(rows, said, strict=True)
    ]
    assert [answer.text for answer in answers][1:] == ["-3", *replies[2:], None]
    assert exam.own["accuracy"](answers, ScriptedTools(lambda now: "")) == [1.0, 1.0, 1.0, 0.0, 0.0]


# ------------------------------------------------------------------------------------------------- TRR++
def episodes_of(role: str, rewards: list[float], lengths: list[int]) -> list[Episode]:
    said = completions(["a" * length for length in lengths])
    return [
        Episode.from_completion(one, None, {}, role=role, policy="actor", group=f"{place}", reward=reward)
        for place, (one, reward) in enumerate(zip(said, rewards, strict=True))
    ]


def test_advantages_are_those_of_each_role_by_itself() -> None:
    """By hand: rewards 1, 1, −.5, −1 have the mean 1/8 and the deviation sqrt(17.1875 / 12)."""
    loss = AbsoluteZeroSection().loss
    assert (loss.advantage, loss.mini_batches, loss.kl) == ("batch-zscore", 3, "none")
    own, _ = assign(episodes_of("solve_deduction", [1.0, 1.0, -0.5, -1.0], [3, 5, 1, 2]), loss)
    deviation = ((2 * 0.875**2 + 0.625**2 + 1.125**2) / 3) ** 0.5
    assert [one.advantage for one in own] == pytest.approx(
        [r / (deviation + 1e-6) for r in (0.875, 0.875, -0.625, -1.125)]
    )
    released, _ = assign(
        episodes_of("solve_deduction", [1.0, -0.5], [2, 0]), LossCard(advantage="token-whiten", advantage_eps=1e-8)
    )  # 3 tokens and 1, with their ends: mean 5/8, variance (3 · (3/8)² + (9/8)²) / 3
    root = ((3 * 0.375**2 + 1.125**2) / 3) ** 0.5
    assert [one.advantage for one in released] == pytest.approx([0.375 / root, -1.125 / root])
