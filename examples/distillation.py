"""On-policy distillation: the student answers questions with searches, and a teacher rates every token that it sampled.

The reward is 0: the student learns from the teacher alone, by the KL term of its loss. Questions need no answers for
that; those of the data only tell how many of the student's answers are right (`student/correct`).
See docs/distillation.md, and examples/distillation.toml for a card.
"""

from scope_jax.config import LossCard, RoleSection
from scope_jax.config.base import CardPath, GameSection, prompts_of
from scope_jax.grading.rewards import exact_match
from scope_jax.learner.types import Datum
from scope_jax.play import searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Panel
from scope_jax.play.prompting import Prompt, shown
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played
from scope_jax.play.tools import BASE
from scope_jax.text import parsing

STUDENT, FINAL = "student", "answer"
SOLVER = Prompt("solver", ("question",), searches=True)


class Options(GameSection):
    """The [distillation] table."""

    teacher: str = "teacher"
    """Who rates the student: a table of [teachers], or the policy `base`."""
    prompts: CardPath = prompts_of("ssp")
    """Folder with `solver.txt`, which shows `{question}`, `{search}` and `{results}`."""
    student: RoleSection = RoleSection(samples=4, loss=LossCard(advantage="none", kl="none", teacher="k2"))
    """Samples of each question, their limits, and the loss."""


def roles(cfg):
    """The student, and the base if it is the teacher."""
    options = cfg.options(Options)
    student = Role(
        STUDENT,
        searching.with_searches(Agent.of_role(options.student, ACTOR), FINAL),
        loss=options.student.loss,
        prompts=(SOLVER,),
        table="distillation.student",
    )
    if options.teacher == BASE:
        return student, Role("teacher", Agent(BASE, options.student.sampling))
    return (student,)


def prompt(cfg, row):
    return SOLVER.messages(cfg, question=shown(cfg, row["question"]))


def answer(completion):
    return parsing.last(searching.contents(completion), FINAL) or None


def play(step):
    """One step: the student's answers to the next `train.batch_size` questions, rated by the teacher."""
    size = step.cfg.train.batch_size
    rows = step.rows(step.number * size, size)
    groups = step.play(STUDENT, [prompt(step.cfg, row) for row in rows], samples=step.card.student.samples)
    answered = [(row, sample) for row, group in zip(rows, groups, strict=True) for sample in group]
    rated = rate(step, [sample for _, sample in answered])
    episodes = []
    for (row, sample), datums in zip(answered, rated, strict=True):
        said = answer(sample)
        episode = sample.episode(
            0.0,
            parts={"correct": float(said is not None and exact_match(said, row["answers"]))},
            text={"question": row["question"], "answer": row["answers"][0], "prediction": said},
            datums=datums,
        )
        episodes.append(episode)
    return Played(episodes)


def rate(step, samples):
    """The rows of each sample, with the teacher's log-probs of its tokens; all are rated in one batch."""
    student = step.card.student
    rows = [(place, row) for place, sample in enumerate(samples) for row in Datum.from_completion(sample)]
    temperature = student.sampling.temperature if student.loss.tempered else 1.0
    logprobs = step.tools.score(step.card.teacher, [row for _, row in rows], temperature=temperature)
    rated = [[] for _ in samples]
    for (place, row), logprobs_T in zip(rows, logprobs, strict=True):
        rated[place].append(row.with_teacher(logprobs_T))
    return rated


def exam(cfg):
    """Questions answered as in training."""
    return Exam(
        role=roles(cfg)[0],
        prompt=lambda row, tokens: prompt(cfg, row),
        read=answer,
        measures=("accuracy",),
        prompts=cfg.options(Options).prompts,
    )


GAME = Game(
    name="distillation",
    options=Options,
    roles=roles,
    play=play,
    exam=exam,
    data=("questions",),
    panels=(ACCURACY, Panel("KL to the teacher", (f"{STUDENT}/teacher_k2", f"{STUDENT}/teacher_k3"), False), GRADIENT),
)
