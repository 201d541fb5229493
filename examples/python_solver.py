"""Math with Python: the solver may run code before it answers; a right answer is rewarded.

Calls of the tool and their results are turns of one episode. The variables of a program live until the episode ends.
"""

from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.learner.types import Episode, RoleShare, Update
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, REWARD, Game, Panel
from scope_jax.play.math_answers import Comparison
from scope_jax.play.python_tool import python_tool
from scope_jax.play.rewards import means, parts_of
from scope_jax.play.tools import Agent, Rollout
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


def prompt(row):
    return Messages(f"{row['question']} You may run Python. Put the answer into \\boxed{{}}.")


def answer(completion):
    return boxed(completion.turns[-1].content) if completion.turns else None


def ran(completion):
    """Whether a program of the episode ran to its end."""
    return any(call.status == "ok" for call in completion.calls)


def play(cfg, tools, memory, step):
    options = cfg.options(Options)
    rows = tools.rows(step * options.questions, options.questions)
    rollouts = [Rollout(f"{place}", prompt(row)) for place, row in enumerate(rows)]
    agent = Agent("actor", options.sampling, tools=("python",), max_turns=options.max_turns)
    groups = tools.play("solver", rollouts, agent, options.samples)
    pairs = [(row, said) for row, group in zip(rows, groups, strict=True) for said in group]
    cases = [Comparison(answer(said) or "", tuple(row["answers"])) for row, said in pairs]
    episodes = []
    for place, ((row, said), verdict) in enumerate(zip(pairs, tools.compare_math(cases), strict=True)):
        text = {"question": row["question"], "prediction": answer(said), "answers": row["answers"]}
        fields = {"role": "solver", "policy": "actor", "group": f"solver/{place // options.samples}"}
        parts = {"ran": float(ran(said))}
        reward = float(verdict == "equal")
        episodes.append(Episode.from_completion(said, prompt(row), text, reward=reward, parts=parts, **fields))
    return episodes, memory, means(parts_of("solver", episodes, "ran"))


def updates(cfg):
    return (Update("actor", cfg.options(Options).loss, (RoleShare("solver"),)),)


def exam(cfg):
    """Held-out questions, asked and graded as in training."""
    return Exam(
        "actor",
        lambda row, tokens: prompt(row),
        answer,
        ("accuracy", "ran"),
        accuracy=("same-text", "math"),
        own={"ran": lambda answers, tools: [float(ran(one.completion)) for one in answers]},
        tools=("python",),
        max_turns=cfg.options(Options).max_turns,
    )


GAME = Game(
    name="python_solver",
    options=Options,
    play=play,
    updates=updates,
    exam=exam,
    tools=tools,
    data=("questions",),
    panels=(ACCURACY, REWARD, Panel("Answers after a program", ("/ran",), True)),
)
