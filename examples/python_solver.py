"""Math with Python: the solver may run code before it answers; a right answer is rewarded.

Calls of the tool and their results are turns of one episode. The variables of a program live until the episode ends.
"""

from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.environments.python_tool import python_tool
from scope_jax.grading.math_answers import Comparison
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, REWARD, Game, Panel
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played
from scope_jax.text.messages import Messages
from scope_jax.text.parsing import boxed


class Options(Section):
    """The [python_solver] table."""

    questions: int
    """Questions of a step."""
    samples: int
    """Answers to a question."""
    max_turns: int = 4
    """Most turns of an answer: programs, and the answer itself."""
    sampling: SamplingSection = SamplingSection()
    loss: LossCard = LossCard()


def tools(cfg):
    return (python_tool(cfg),)


def roles(cfg):
    options = cfg.options(Options)
    agent = Agent("actor", options.sampling, tools=("python",), max_turns=options.max_turns)
    return (Role("solver", agent, loss=options.loss),)


def prompt(row):
    return Messages(f"{row['question']} You may run Python. Put the answer into \\boxed{{}}.")


def answer(completion):
    return boxed(completion.turns[-1].content) if completion.turns else None


def ran(completion):
    """Whether a program of the episode ran to its end."""
    return any(call.status == "ok" for call in completion.calls)


def play(step):
    count = step.card.questions
    rows = step.rows(step.number * count, count)
    groups = step.play("solver", [prompt(row) for row in rows], samples=step.card.samples)
    answered = [(row, sample) for row, group in zip(rows, groups, strict=True) for sample in group]
    cases = [Comparison(answer(sample) or "", tuple(row["answers"])) for row, sample in answered]
    episodes = []
    for (row, sample), verdict in zip(answered, step.compare_math(cases), strict=True):
        text = {"question": row["question"], "prediction": answer(sample), "answers": row["answers"]}
        episodes.append(sample.episode(float(verdict == "equal"), parts={"ran": float(ran(sample))}, text=text))
    return Played(episodes)


def exam(cfg):
    """Held-out questions, asked and graded as in training."""
    return Exam(
        role=roles(cfg)[0],
        prompt=lambda row, tokens: prompt(row),
        read=answer,
        measures=("accuracy", "ran"),
        accuracy=("same-text", "math"),
        own={"ran": lambda answers, tools: [float(ran(one.completion)) for one in answers]},
    )


GAME = Game(
    name="python_solver",
    batch=("python_solver.questions",),
    options=Options,
    roles=roles,
    play=play,
    exam=exam,
    tools=tools,
    data=("questions",),
    panels=(ACCURACY, REWARD, Panel("Answers after a program", ("/ran",), True)),
)
