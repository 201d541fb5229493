"""Absolute Zero as a `Game`: Algorithm 1, prompts, the learner's update, metrics, the exam of its solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.errors import UserError
from scope_jax.games.absolute_zero import rules
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection, check
from scope_jax.games.absolute_zero.rules import Item, hidden, identity
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import functions, metric_names, prompting, searching
from scope_jax.play.exams import Answer, Exam
from scope_jax.play.game import ACTOR, GRADIENT, REWARD, Game, Memory, Panel
from scope_jax.play.rewards import mean, means, parts_of
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

SEEDINGS, RUNS = 200, 2  # most batches of the seeding; runs of a proposal, which must agree
Buffers = Mapping[str, Sequence[Item]]  # by task
Asked = tuple[str, Messages, Item | None]  # task, prompt, and what it is about


class Said(NamedTuple):
    """A proposal or an answer, and its task; None: the proposal is not valid."""

    task: str
    prompt: Messages
    completion: Completion
    item: Item | None


def options(cfg: Config) -> AbsoluteZeroSection:
    return cfg.options(AbsoluteZeroSection)


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of Algorithm 1 up to the update: episodes of both roles, the buffers after it, metrics."""
    card, tasks = options(cfg), options(cfg).tasks
    # initial seeding, before the first step
    before = memory or seeded(cfg, tools)
    # propose: tasks of each kind; running them validates them, and tells their outputs
    proposals = propose(cfg, tools, tasks, before, step + 1, "propose")
    valid = {task: [one.item for one in proposals if one.task == task and one.item] for task in tasks}
    after = {task: [*before[task], *valid[task]][-card.buffer :] for task in tasks}
    # solve: the new tasks several times, for their proposer's reward; and a batch from the buffers
    source = after if card.solve == "updated" else before
    size, draw = cfg.train.batch_size, lambda task: rng("problems", cfg.seed, step, task)
    problems = {task: rules.chosen(source[task], size, draw(task)) for task in tasks}
    tries, answers = solve(cfg, tools, "estimate", valid, card.estimates), solve(cfg, tools, "solve", problems, 1)
    right = grade(cfg, tools, [(one.task, one.item or {}, one.completion) for one in (*tries, *answers)])
    # rewards, Eqs. (4) to (6)
    solved = iter([one or 0.0 for one in right[: len(tries)]])
    rates = [mean([next(solved) for _ in range(card.estimates)]) if one.item else None for one in proposals]
    pairs = [*zip(proposals, rates, strict=True), *zip(answers, right[len(tries) :], strict=True)]
    episodes = [episode(cfg, place, *pair, asked=place >= len(proposals)) for place, pair in enumerate(pairs)]
    # the training loop calls `updates`: task-relative REINFORCE++, Eq. (8)
    values = searching.lengths("propose", [one.completion for one in proposals])
    values |= searching.lengths("solve", [one.completion for one in answers])
    for role in dict.fromkeys(one.role for one in episodes):
        values |= parts_of(role, episodes, "valid", "format", "solved")
    for task in tasks:
        values[f"{task}/buffer"] = [float(len(after[task]))]
        known = {one["program"] for one in before[task]}
        values[f"{task}/new"] = [float(one["program"] not in known) for one in valid[task]]
    return episodes, after, means(values)


def seeded(cfg: Config, tools: Tools) -> Memory:
    """Buffers that the base has filled. Raises UserError if it writes too few valid tasks."""
    card = options(cfg)
    buffers = {task: [identity(card.inputs if task == "induction" else 1)] for task in card.tasks}
    first, *others = sorted(card.tasks, key="induction".__eq__)  # inductions are about the programs of the first
    for task in (first, *(task for task in others if task == "induction")):
        for batch in range(SEEDINGS):
            new = [one.item for one in propose(cfg, tools, (task,), buffers, 0, f"seeding {task} {batch}") if one.item]
            distinct = {(one["program"], *one["inputs"]): one for one in (*buffers[task], *new)}
            buffers[task] = [*distinct.values()][: card.seeds]
            if len(buffers[task]) == card.seeds:
                break
        else:
            few = f"the base wrote {len(buffers[task])} valid tasks of {task} in {SEEDINGS} batches"
            raise UserError(f"{few}; lower absolute_zero.seeds, {card.seeds}, or take a base that can write them.")
        buffers |= {other: buffers[first] for other in others if task == first and other != "induction"}
    return buffers


def propose(cfg: Config, tools: Tools, tasks: Sequence[str], buffers: Buffers, step: int, role: str) -> list[Said]:
    """A batch of proposals of each task; the items of those that are valid are from this step."""
    card, asked = options(cfg), []
    programs = [one for task in card.tasks if task != "induction" for one in buffers[task]]
    for task, place in product(tasks, range(cfg.train.batch_size)):
        known, most = (programs, 1) if task == "induction" else (buffers[task], card.references)
        earlier = drawn(known, most, rng("references", cfg.seed, step, role, task, place))
        while tools.prompt_tokens(for_proposer(cfg, task, earlier)) > card.max_prompt_tokens and len(earlier) > 1:
            earlier.pop()
        asked.append((task, for_proposer(cfg, task, earlier), earlier[0] if earlier else None))
    said = sample(cfg, tools, role, asked, 1)
    drafts = [rules.draft(one.task, text(one.completion), one.item, card) for one in said]
    runs = [(one["program"], one["inputs"]) if one else ("", ()) for one in drafts]
    ran = zip(drafts, functions.outputs(cfg.sandbox, tools, runs, repeats=RUNS), strict=True)
    valid = [one | {"outputs": own, "step": step} if one and None not in own else None for one, own in ran]
    return [one._replace(item=item) for one, item in zip(said, valid, strict=True)]


def solve(cfg: Config, tools: Tools, role: str, problems: Buffers, samples: int) -> list[Said]:
    """Answers to tasks of each kind, those to one task consecutive."""
    asked = [(task, for_solver(cfg, task, one), one) for task, items in problems.items() for one in items]
    return sample(cfg, tools, role, asked, samples)


def sample(cfg: Config, tools: Tools, role: str, asked: Sequence[Asked], samples: int) -> list[Said]:
    """What the policy says to each prompt."""
    card = options(cfg)
    limits = {"max_prompt_tokens": card.max_prompt_tokens, "tempered": card.loss.tempered}
    rollouts = [Rollout(f"{place}", prompt) for place, (_, prompt, _) in enumerate(asked)]
    groups = tools.play(role, rollouts, Agent(ACTOR, card.sampling, **limits), samples)
    return [Said(*one[:2], said, one[2]) for one, group in zip(asked, groups, strict=True) for said in group]


def grade(cfg: Config, tools: Tools, cases: Sequence[tuple[str, Item, Completion]]) -> list[float | None]:
    """1 for a right answer, 0 for a wrong one, None if its form is wrong. Any input with the output is right."""
    said = [rules.solution(task, text(completion)) for task, _, completion in cases]
    runs = [rules.run(task, item, one) for (task, item, _), one in zip(cases, said, strict=True)]
    values = functions.outputs(cfg.sandbox, tools, runs)
    wanted = [hidden(item["outputs"]) for _, item, _ in cases]
    found = [own or [one] for own, one in zip(values, said, strict=True)]  # a deduction is a value itself
    right = functions.same_values(cfg.sandbox, tools, [*zip(found, wanted, strict=True)])
    return [None if one is None else float(each) for one, each in zip(said, right, strict=True)]


def episode(cfg: Config, place: int, one: Said, result: float | None, asked: bool) -> Episode:
    """Of a proposal, whose result is how often its task is solved, or of an answer, which is right or not."""
    card, form = options(cfg), float(result is not None)
    return Episode.from_completion(
        one.completion,
        one.prompt,
        one.item or {},
        role=f"{'solve' if asked else 'propose'}_{one.task}",
        policy=ACTOR,
        group=f"{place}",
        reward=rules.solver_reward(result) if asked else rules.proposer_reward(result, card),
        parts={"format" if asked else "valid": form} | ({"solved": result} if result is not None else {}),
        trained=asked or card.train == "both",
        temperature=card.sampling.temperature,
    )


def text(completion: Completion) -> str:
    """The reply, whoever has opened its thinking."""
    return "".join(("<think>" if turn.opened else "") + turn.text for turn in completion.turns[:1])


def blocks(cfg: Config, **contents: str) -> str:
    """Fenced blocks."""
    return "\n".join(f"```{kind}\n{prompting.shown(cfg, inside)}\n```" for kind, inside in contents.items())


def for_proposer(cfg: Config, task: str, earlier: Sequence[Item]) -> Messages:
    """Prompt to write a task unlike earlier ones, or an induction about the program of one."""
    calls = [(one["program"], one["inputs"][0], one["outputs"][0]) for one in earlier]
    values = {"references": "\n\n".join(blocks(cfg, python=p, input=i, output=o) for p, i, o in calls)}
    values |= {"banned": ", ".join(options(cfg).banned)}
    if task == "induction":
        values = {"program": blocks(cfg, python=earlier[0]["program"]), "count": str(options(cfg).inputs)}
    return prompting.for_role(options(cfg).prompts, f"propose_{task}", values, (*values,)[:1])


def for_solver(cfg: Config, task: str, item: Item) -> Messages:
    """Prompt to find the output, an input or the program."""
    calls = [blocks(cfg, input=given, output=told) for given, told in zip(item["inputs"], item["outputs"], strict=True)]
    shown = {
        "deduction": [blocks(cfg, python=item["program"], input=item["inputs"][0])],
        "abduction": [blocks(cfg, python=item["program"], output=item["outputs"][0])],
        "induction": [*calls[: len(calls) // 2], blocks(cfg, message=item["message"])],
    }
    return prompting.for_role(options(cfg).prompts, f"solve_{task}", {"task": "\n".join(shown[task])}, ("task",))


def check_prompts(cfg: Config) -> None:
    """Fills in every prompt that the card's game uses; raises PromptError."""
    for task in options(cfg).tasks:
        for_proposer(cfg, task, [identity(2)])
        for_solver(cfg, task, identity(2))


def updates(cfg: Config) -> tuple[Update, ...]:
    """One, of all trained roles, each with advantages of its own."""
    kinds = ("propose", "solve") if options(cfg).train == "both" else ("solve",)
    roles = [RoleShare(f"{kind}_{task}") for kind, task in product(kinds, options(cfg).tasks)]
    return (Update(ACTOR, options(cfg).loss, tuple(roles)),)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    tasks, lengths = options(cfg).tasks, dict.fromkeys(("propose", "solve"), metric_names.LENGTHS)
    proposals = {f"propose_{task}": "reward valid solved" for task in tasks}
    answers = {f"solve_{task}": "reward format solved" for task in tasks}
    return metric_names.of(proposals | answers | lengths | dict.fromkeys(tasks, "buffer new"))


def exam(cfg: Config) -> Exam:
    """Tasks (rows with `task` and what a task has), solved and graded as in training."""

    def solved(answers: Sequence[Answer], tools: Tools) -> list[float]:
        cases = [(one.row["task"], dict(one.row), one.completion) for one in answers]
        return [right or 0.0 for right in grade(cfg, tools, cases)]

    prompt = lambda row, tokens: for_solver(cfg, row["task"], row)  # noqa: E731
    read = lambda said: rules.answered(text(said))  # noqa: E731
    return Exam(ACTOR, prompt, read, ("solved",), kind="rows", own={"solved": solved})


GAME = Game(
    "absolute_zero",
    AbsoluteZeroSection,
    play,
    updates,
    exam,
    source=lambda cfg: None,
    check=check,
    tools=lambda cfg: functions.tools_of(cfg.sandbox),
    check_prompts=check_prompts,
    panels=(Panel("Held-out tasks solved", ("/solved",), True, of_exams=True), REWARD, GRADIENT),
    metrics=metrics,
    title="Absolute Zero",
)
