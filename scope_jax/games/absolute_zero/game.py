"""Absolute Zero as a `Game`: a step, prompts, the learner's update, metrics, the exam of its solver."""

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, product
from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.errors import UserError
from scope_jax.games.absolute_zero import rules
from scope_jax.games.absolute_zero.rules import Item, Options, check, hidden, identity
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import functions, metric_names, searching
from scope_jax.play.exams import Answer, Exam
from scope_jax.play.game import ACTOR, Game, Memory, Starter
from scope_jax.play.prompting import fences, for_role
from scope_jax.play.rewards import mean, means, parts_of
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

SEEDINGS, RUNS = 200, 2  # most batches of the seeding; runs of a proposal, which must agree
Buffers = Mapping[str, Sequence[Item]]  # by task
Writer = Callable[[Config, str, Any], Messages]
Said = namedtuple("Said", "task prompt completion item")  # a reply, and what it is about: a task, or earlier ones


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step up to the update: episodes of both roles, the buffers after it, metrics."""
    card, size, tasks = cfg.options(Options), cfg.train.batch_size, cfg.options(Options).tasks
    # initial seeding, before the first step
    before = memory or seeded(cfg, tools)
    # propose: tasks of each kind; running them validates them, and tells their outputs
    proposals = propose(cfg, tools, tasks, before, step + 1, "propose")
    after = {task: [*before[task], *kept(cfg, tools, task, proposals)][-card.buffer :] for task in tasks}
    # solve: the new tasks several times, for their proposer's reward; and a batch from the buffers
    source, latest = (after, step + 1) if card.solve == "updated" else (before, step)
    problems = {task: rules.chosen(source[task], size, latest, rng("problems", cfg.seed, step, task)) for task in tasks}
    new = [(one.task, one.item) for one in proposals if one.item]
    tries = sample(cfg, tools, "estimate", for_solver, new, card.estimates)
    answers = sample(cfg, tools, "solve", for_solver, [(task, one) for task in tasks for one in problems[task]])
    # rewards; a right answer in a bad form counts for the proposer, but not for the solver
    solved = iter(grade(cfg, tools, [(one.task, one.item, one.completion) for one in tries], formal=False))
    right = grade(cfg, tools, [(one.task, one.item, one.completion) for one in answers])
    rates = [mean([next(solved) or 0.0 for _ in range(card.estimates)]) if one.item else None for one in proposals]
    episodes = [episode(card, "propose", *each) for each in zip(count(), proposals, rates, strict=False)]
    episodes += [episode(card, "solve", *each) for each in zip(count(), answers, right, strict=False)]
    # the training loop calls `updates`: task-relative REINFORCE++
    values = {f"{task}/buffer": [float(len(items))] for task, items in after.items()}
    for kind, said in (("propose", proposals), ("solve", answers)):
        values |= searching.lengths(kind, [one.completion for one in said])
    for role in dict.fromkeys(one.role for one in episodes):
        values |= parts_of(role, episodes, "valid", "format", "solved")
    return episodes, after, means(values)


def seeded(cfg: Config, tools: Tools) -> Memory:
    """Buffers that the base has filled. Raises UserError if it writes too few valid tasks."""
    card = cfg.options(Options)
    buffers = {task: [identity(card.inputs if task == "induction" else 1)] for task in card.tasks}
    for task in sorted(card.tasks, key="induction".__eq__):  # which is about the programs of the others
        for batch in range(SEEDINGS):
            proposals = propose(cfg, tools, (task,), buffers, 0, f"seeding {task} {batch}")
            new = kept(cfg, tools, task, proposals)
            distinct = {(one["program"], *one["inputs"]): one for one in (*buffers[task], *new)}
            buffers[task] = [*distinct.values()][: card.seeds]
            if len(buffers[task]) == card.seeds:
                break
        else:
            few = f"the base wrote {len(buffers[task])} valid tasks of {task} in {SEEDINGS} batches"
            raise UserError(f"{few}; lower absolute_zero.seeds, {card.seeds}, or take a base that can write them.")
    return buffers


def propose(cfg: Config, tools: Tools, tasks: Sequence[str], buffers: Buffers, step: int, role: str) -> list[Said]:
    """A batch of proposals of each task; of those that are valid, `item` is the task, of this step, else None."""
    card, asked = cfg.options(Options), []
    programs = [one for task in card.tasks if task != "induction" for one in buffers[task]]
    for task, place in product(tasks, range(cfg.train.batch_size)):
        known, most = (programs, 1) if task == "induction" else (buffers[task], card.references)
        earlier = drawn(known, most, rng("references", cfg.seed, step, role, task, place))
        while not fits(cfg, tools, for_proposer(cfg, task, earlier)) and len(earlier) > (task == "induction"):
            earlier.pop()
        asked.append((task, earlier))
    said = sample(cfg, tools, role, for_proposer, asked)
    drafts = [rules.draft(one.task, one.completion.text, one.item, card) for one in said]
    runs = [(one["program"], one["inputs"]) if one else ("", ()) for one in drafts]
    ran = zip(drafts, functions.outputs(cfg.sandbox, tools, runs, repeats=RUNS), strict=True)
    valid = [one | {"outputs": own, "step": step} if one and None not in own else None for one, own in ran]
    return [one._replace(item=item) for one, item in zip(said, valid, strict=True)]


def fits(cfg: Config, tools: Tools, prompt: Messages) -> bool:
    """Whether a prompt is short enough to be answered."""
    limit = min(cfg.options(Options).max_prompt_tokens, cfg.rollout.max_length - 1)
    return tools.prompt_tokens(prompt) <= limit


def kept(cfg: Config, tools: Tools, task: str, proposals: Sequence[Said]) -> list[Item]:
    """The valid tasks of a kind that enter its buffer: those that fit into the prompts by themselves."""
    items = [one.item for one in proposals if one.task == task and one.item]
    roles = [lambda item: for_solver(cfg, task, item)]
    if task != "induction" and "induction" in cfg.options(Options).tasks:
        roles.append(lambda item: for_proposer(cfg, "induction", [item]))
    return [item for item in items if all(fits(cfg, tools, prompt(item)) for prompt in roles)]


def sample(cfg: Config, tools: Tools, role: str, write: Writer, about: Sequence[Any], samples: int = 1) -> list[Said]:
    """Replies to the prompts that are written about a task and an item, or earlier ones; of a prompt consecutive."""
    card, prompts = cfg.options(Options), [write(cfg, *each) for each in about]
    limits = {"max_prompt_tokens": card.max_prompt_tokens, "tempered": card.loss.tempered}
    rollouts = [Rollout(f"{place}", prompt) for place, prompt in enumerate(prompts)]
    groups = tools.play(role, rollouts, Agent(ACTOR, card.sampling, **limits), samples)
    every = zip(about, prompts, groups, strict=True)
    return [Said(task, prompt, said, item) for (task, item), prompt, group in every for said in group]


def grade(
    cfg: Config, tools: Tools, cases: Sequence[tuple[str, Item, Completion]], formal: bool = True
) -> list[float | None]:
    """1 for a right answer, 0 for a wrong one, None for none, or one in a bad form. Any input with the output is right.

    formal: as in `rules.answer_of`.
    """
    said = [rules.solution(task, completion.text, formal) for task, _, completion in cases]
    runs = [rules.run(task, item, one) for (task, item, _), one in zip(cases, said, strict=True)]
    values = zip(functions.outputs(cfg.sandbox, tools, runs), said, cases, strict=True)
    found = [(own or [one], hidden(item, "outputs")) for own, one, (_, item, _) in values]  # or the deduction itself
    right = functions.same_values(cfg.sandbox, tools, found)
    return [None if one is None else float(each) for one, each in zip(said, right, strict=True)]


def episode(card: Options, kind: str, place: int, one: Said, result: float | None) -> Episode:
    """Of a proposal, whose result is how often its task is solved, or of an answer, which is right or not."""
    parts = {"valid" if kind == "propose" else "format": float(result is not None)}
    parts |= {} if result is None else {"solved": result}
    reward = rules.proposer_reward(result, card) if kind == "propose" else rules.SOLVER_REWARDS[result]
    fields = {"role": f"{kind}_{one.task}", "policy": ACTOR, "group": f"{place}", "reward": reward, "parts": parts}
    fields |= {"trained": kind == "solve" or card.train == "both", "temperature": card.sampling.temperature}
    return Episode.from_completion(one.completion, one.prompt, one.item or {}, **fields)


def for_proposer(cfg: Config, task: str, earlier: Sequence[Item]) -> Messages:
    """Prompt to write a task unlike earlier ones, or an induction about the program of one."""
    card, texts = cfg.options(Options), []
    for one in earlier:
        texts.append(fences(cfg, python=one["program"], input=one["inputs"][0], output=one["outputs"][0]))
    values = {"references": "\n\n".join(texts), "banned": ", ".join(card.banned)}
    if task == "induction":
        values = {"program": fences(cfg, python=earlier[0]["program"]), "count": str(card.inputs)}
    return for_role(card.prompts, f"propose_{task}", values, (*values,)[:1])


def for_solver(cfg: Config, task: str, item: Item) -> Messages:
    """Prompt to find the output, an input or the program."""
    calls = [fences(cfg, input=given, output=told) for given, told in zip(item["inputs"], item["outputs"], strict=True)]
    texts = {
        "deduction": [fences(cfg, python=item["program"], input=item["inputs"][0])],
        "abduction": [fences(cfg, python=item["program"], output=item["outputs"][0])],
        "induction": [*calls[: len(calls) // 2], fences(cfg, message=item["message"])],
    }
    folder = cfg.options(Options).prompts
    return for_role(folder, f"solve_{task}", {"task": "\n".join(texts[task])}, ("task",))


def check_prompts(cfg: Config) -> None:
    """Fills in every prompt that the card's game uses; raises PromptError."""
    for task in cfg.options(Options).tasks:
        for_proposer(cfg, task, [identity(2)])
        for_solver(cfg, task, identity(2))


def updates(cfg: Config) -> tuple[Update, ...]:
    """One, of all trained roles, each with advantages of its own."""
    card = cfg.options(Options)
    kinds = ("propose", "solve") if card.train == "both" else ("solve",)
    return (Update(ACTOR, card.loss, tuple(RoleShare("_".join(role)) for role in product(kinds, card.tasks))),)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    tasks = cfg.options(Options).tasks
    roles = {f"propose_{task}": "reward valid solved" for task in tasks}
    roles |= {f"solve_{task}": "reward format solved" for task in tasks} | dict.fromkeys(tasks, ("buffer",))
    return metric_names.of(roles | dict.fromkeys(("propose", "solve"), metric_names.LENGTHS))


def exam(cfg: Config) -> Exam:
    """Tasks, rows with `task` and what a task has, solved and graded as in training."""

    def solved(answers: Sequence[Answer], tools: Tools) -> list[float]:
        cases = [(one.row["task"], dict(one.row), one.completion) for one in answers]
        return [right or 0.0 for right in grade(cfg, tools, cases)]

    prompt, own = lambda row, tokens: for_solver(cfg, row["task"], row), {"accuracy": solved}
    return Exam(ACTOR, prompt, lambda said: rules.answer_of(said.text), ("accuracy",), kind="rows", own=own)


OWN: dict[str, Any] = {"source": lambda cfg: None, "tools": lambda cfg: functions.tools_of(cfg.sandbox)}
OWN |= {"check": check, "check_prompts": check_prompts, "metrics": metrics, "title": "Absolute Zero"}
OWN |= {"starter": Starter({"max_prompt_tokens": 2048})}  # half of the 4096 that `new` gives an episode
GAME = Game("absolute_zero", Options, play, updates, exam, **OWN)
