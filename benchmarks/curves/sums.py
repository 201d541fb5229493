"""The game of the comparison: sums in the order of the file, an exact reward, nothing else."""

import task

from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.learner.types import Episode, RoleShare, Update
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, REWARD, Game
from scope_jax.play.rewards import mean, means, parts_of
from scope_jax.play.tools import Agent, Rollout
from scope_jax.text.messages import Messages


class Options(Section):
    """The [sums] table."""

    sampling: SamplingSection
    loss: LossCard


def play(cfg, tools, memory, step):
    options = cfg.options(Options)
    rows = sorted(tools.rows(0, task.STEPS * task.PROMPTS), key=lambda row: row["place"])  # all of them, once
    rows = rows[step * task.PROMPTS : (step + 1) * task.PROMPTS]
    rollouts = [Rollout(row["question"], Messages(row["question"])) for row in rows]
    groups = tools.play("solver", rollouts, Agent("actor", options.sampling), task.SAMPLES)
    episodes = [
        Episode.from_completion(
            completion,
            rollout.messages,
            {"prediction": completion.content},
            role="solver",
            policy="actor",
            group=rollout.name,
            reward=task.right(row, completion.content),
        )
        for row, rollout, group in zip(rows, rollouts, groups, strict=True)
        for completion in group
    ]
    short = mean([float(len(episode.text["prediction"]) < task.ANSWER) for episode in episodes])
    return episodes, memory, means(parts_of("solver", episodes)) | {"solver/short": short}


def updates(cfg):
    return (Update("actor", cfg.options(Options).loss, (RoleShare("solver"),)),)


def exam(cfg):
    return Exam(
        "actor",
        lambda row, tokens: Messages(row["question"]),
        lambda completion: completion.content,
        ("right",),
        own={"right": lambda answers, tools: [task.right(answer.row, answer.text or "") for answer in answers]},
    )


GAME = Game("sums", Options, play, updates, exam, data=("rows",), panels=(ACCURACY, REWARD))
