"""RL with a verifiable reward as a `Game`: one role answers the prompts of a file, and its replies are graded."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.config import Config, Measure
from scope_jax.data.sources import Source
from scope_jax.environments.python_tool import python_tool
from scope_jax.errors import UserError
from scope_jax.games.rlvr import grading
from scope_jax.games.rlvr.options import Place, RLVRSection, completed, holds_out, options
from scope_jax.play.exams import Answer, Exam, Row
from scope_jax.play.game import ACTOR, GRADIENT, REWARD, Examined, Game, Panel, Starter
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played, Step
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tools import Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

ROLE = "policy"
INSTRUCTIONS: dict[Place, str] = {
    "boxed": "Put the final answer into \\boxed{}.",
    "tag": "Put the final answer into <answer></answer>.",
    "last-line": "Write the final answer alone on the last line.",
}


def roles(cfg: Config) -> tuple[Role, ...]:
    """The policy, which answers."""
    card = options(cfg)
    calls = "stop" if cfg.model.turns == "raw" else "all"  # in plain text a result stands right behind its call
    agent = Agent.of_role(card, ACTOR, tools=card.tools, calls=calls)
    return (Role(ROLE, agent, loss=card.loss, table="rlvr"),)


def prompt(card: RLVRSection, row: Row) -> Messages:
    """A row's messages, with the instruction after the last one."""
    *before, last = row["messages"]
    system = before.pop(0)["content"] if before and before[0]["role"] == "system" else None
    text = f"{last['content']}\n{card.instruction}" if card.instruction else last["content"]
    return Messages(text, system, before=tuple(before), role=last["role"])


def play(step: Step[RLVRSection]) -> Played:
    """One step: the next `train.batch_size` prompts, `samples` replies to each, their rewards."""
    card, size = step.card, step.cfg.train.batch_size
    rows = step.rows(step.number * size, size)
    groups = step.play(ROLE, [prompt(card, row) for row in rows], samples=card.samples)
    replies = [(row, sample) for row, group in zip(rows, groups, strict=True) for sample in group]
    graded = grading.grade(card, step.tools, replies)
    episodes = []
    for (row, sample), grade in zip(replies, graded.rewards, strict=True):
        said = grading.answer(card, sample)
        text = {"question": row["question"], "prediction": said, "answers": row["answers"]}
        episodes.append(sample.episode(grade, parts={"answered": float(said is not None)}, text=text))
    return Played(episodes, metrics=graded.counts)


def exam(cfg: Config) -> Exam:
    """Prompts asked and graded as in training."""
    card = options(cfg)

    def rewards(answers: Sequence[Answer], tools: Tools) -> Sequence[float]:
        return grading.grade(card, tools, [(one.row, one.completion) for one in answers]).rewards

    def read(completion: Completion) -> str | None:
        return grading.answer(card, completion)

    measure: Measure = "exact-match" if card.grader == "function" else card.grader
    return Exam(
        role=roles(cfg)[0],
        prompt=lambda row, tokens: prompt(card, row),
        read=read,
        measures=("reward",) if card.grader in ("f1", "function") else ("accuracy",),
        accuracy=(measure,),
        kind="problems",
        own={"reward": rewards},
    )


def source(cfg: Config) -> Source:
    """The rows that are trained on."""
    if cfg.data.problems is None:
        raise UserError("data.problems is missing; rlvr needs a file of prompts with their answers.")
    return Source(cfg.data.problems, "problems", cfg.data, part="trained" if holds_out(cfg) else "all")


def tools(cfg: Config) -> tuple[Tool, ...]:
    """Python, if the card names it; the search is that of [retrieval]."""
    return (python_tool(cfg),) if "python" in options(cfg).tools else ()


def examine(cfg: Config, rows: Sequence[Row]) -> Examined:
    """Grades the answers of rows against themselves, and shows the first row."""
    card = options(cfg)
    return grading.examine(card, rows, prompt(card, rows[0]).text)


def instruction(cfg: Config) -> dict[str, str]:
    """What a new card asks for, if its grader reads the answer at a certain place."""
    said = options(cfg).instruction or INSTRUCTIONS.get(options(cfg).place, "")
    return {"instruction": said} if said and options(cfg).grader != "function" else {}


GAME = Game(
    name="rlvr",
    options=RLVRSection,
    roles=roles,
    play=play,
    exam=exam,
    data=("problems",),
    source=source,
    completed=completed,
    examine=examine,
    tools=tools,
    starter=Starter(options={"grader": "math"}, completed=instruction),
    panels=(Panel("Held-out score", ("/accuracy", "/reward"), False, of_exams=True), REWARD, GRADIENT),
)
