"""The game of the comparison: sums in the order of the file, an exact reward, nothing else."""

import task

from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.grading.rewards import mean
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, REWARD, Game
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.step import Played
from scope_jax.text.messages import Messages


class Options(Section):
    """The [sums] table."""

    sampling: SamplingSection
    loss: LossCard


def roles(cfg):
    card = cfg.options(Options)
    return (Role("solver", Agent("actor", card.sampling), loss=card.loss),)


def play(step):
    rows = sorted(step.rows(0, task.STEPS * task.PROMPTS), key=lambda row: row["place"])  # all of them, once
    rows = rows[step.number * task.PROMPTS : (step.number + 1) * task.PROMPTS]
    rollouts = [Rollout(row["question"], Messages(row["question"])) for row in rows]
    episodes = [
        sample.episode(task.right(row, sample.content), text={"prediction": sample.content}, group=row["question"])
        for row, group in zip(rows, step.play("solver", rollouts, samples=task.SAMPLES), strict=True)
        for sample in group
    ]
    short = mean([float(len(episode.text["prediction"]) < task.ANSWER) for episode in episodes])
    return Played(episodes, metrics={"solver/short": short})


def exam(cfg):
    return Exam(
        roles(cfg)[0],
        lambda row, tokens: Messages(row["question"]),
        lambda completion: completion.content,
        ("right",),
        own={"right": lambda answers, tools: [task.right(answer.row, answer.text or "") for answer in answers]},
    )


GAME = Game("sums", Options, roles, play, exam=exam, data=("rows",), panels=(ACCURACY, REWARD))
