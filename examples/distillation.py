"""On-policy distillation: the student answers questions with searches, and a teacher rates every token that it sampled.

The reward is 0: the student learns from the teacher alone, by the KL term of its loss. Questions need no answers for
that; those of the data only tell how many of the student's answers are right (`student/correct`).
See docs/distillation.md, and examples/distillation.toml for a card.
"""

from itertools import islice

from scope_jax.config import LossCard, RoleSection
from scope_jax.config.base import CardPath, GameSection, prompts_of
from scope_jax.learner.types import Datum, Episode, RoleShare, Update
from scope_jax.play import prompting, searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Panel
from scope_jax.play.rewards import exact_match, means
from scope_jax.play.tools import Agent, Rollout
from scope_jax.text import parsing

ROLE, FINAL = "student", "answer"
CALLS = {"tools": ("search",), "finals": (FINAL,), "calls": "stop"}  # a turn ends with its search, or with its answer


class Options(GameSection):
    """The [distillation] table."""

    teacher: str = "teacher"
    """Who rates the student: a table of [teachers], or the policy `base`."""
    prompts: CardPath = prompts_of("ssp")
    """Folder with `solver.txt`, which shows `{question}`, `{search}` and `{results}`."""
    student: RoleSection = RoleSection(samples=4, loss=LossCard(advantage="none", kl="none", teacher="k2"))
    """Samples of each question, their limits, and the loss."""


def prompt(cfg, row):
    values = {"question": prompting.shown(cfg, row["question"])}
    return prompting.for_searcher(cfg, cfg.options(Options).prompts, "solver", values, ("question",))


def answer(completion):
    return parsing.last(searching.contents(completion), FINAL) or None


def play(cfg, tools, memory, step):
    """One step: the student's answers to the next `train.batch_size` questions, rated by the teacher."""
    options = cfg.options(Options)
    card, size = options.student, cfg.train.batch_size
    rows = tools.rows(step * size, size)
    rollouts = [Rollout(f"{place}", prompt(cfg, row)) for place, row in enumerate(rows)]
    groups = tools.play(ROLE, rollouts, Agent.of_role(card, ACTOR, malformed="end", **CALLS), card.samples)
    datums = [[Datum.from_completion(completion) for completion in group] for group in groups]
    flat = [datum for group in datums for each in group for datum in each]
    temperature = card.sampling.temperature if card.loss.tempered else 1.0
    rated = iter(
        datum.with_teacher(logprobs)
        for datum, logprobs in zip(flat, tools.score(options.teacher, flat, temperature=temperature), strict=True)
    )
    episodes = []
    for row, rollout, group, rows_of in zip(rows, rollouts, groups, datums, strict=True):
        for completion, mine in zip(group, rows_of, strict=True):
            said = answer(completion)
            episode = Episode.from_completion(
                completion,
                rollout.messages,
                {"question": row["question"], "answer": row["answers"][0], "prediction": said},
                role=ROLE,
                policy=ACTOR,
                group=f"{ROLE}/{rollout.name}",
                reward=0.0,
                parts={"correct": float(said is not None and exact_match(said, row["answers"]))},
                datums=tuple(islice(rated, len(mine))),
                temperature=card.sampling.temperature,
            )
            episodes.append(episode)
    said = [completion for group in groups for completion in group]
    searches = [searching.searches_run(cfg, completion) for completion in said]
    correct = {f"{ROLE}/correct": [episode.parts["correct"] for episode in episodes]}
    return episodes, memory, means(correct | searching.episode_stats(ROLE, said, searches))


def updates(cfg):
    """One, of the student."""
    return (Update(ACTOR, cfg.options(Options).student.loss, (RoleShare(ROLE),)),)


def exam(cfg):
    """Questions answered as in training."""
    options = cfg.options(Options)
    return Exam(
        ACTOR,
        lambda row, tokens: prompt(cfg, row),
        answer,
        ("accuracy",),
        max_turns=options.student.max_turns,
        searches=lambda completion: searching.searches_run(cfg, completion),
        prompts=options.prompts,
        **CALLS,
    )


GAME = Game(
    "distillation",
    Options,
    play,
    updates,
    exam,
    data=("questions",),
    uses_base=lambda cfg: cfg.options(Options).teacher == "base",
    searches=True,
    panels=(ACCURACY, Panel("KL to the teacher", (f"{ROLE}/teacher_k2", f"{ROLE}/teacher_k3"), False), GRADIENT),
)
