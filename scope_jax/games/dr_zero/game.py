"""Dr. Zero as a `Game`: the three phases of an iteration, its roles, metrics, the exam of its solver."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.dr_zero import rules
from scope_jax.games.dr_zero.options import Options
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import documents, metric_names, prompting, searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, GRADIENT, REWARD, Game, Memory, Panel
from scope_jax.play.rewards import exact_match, means, parts_of
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, templates
from scope_jax.text.messages import Messages

PROPOSER, SOLVER = POLICIES = ("proposer", "solver")
PAIR: tuple[str, ...] = ("question", "answer", "passage", "hops")
PARTS = ("format", "think", "tool", "answer", "difficulty", "solved", "searches")
Pairs = Sequence[Mapping[str, Any]]
Asked = tuple[int, Completion, dict[str, Any]]  # number of the prompt, completion, fields of the episode


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of the current phase. Pure: all randomness comes from the seed and the place in the run."""
    card, size, new = cfg.options(Options), cfg.train.batch_size, []
    before, place = memory["iteration"] - 1, memory["place"]
    if memory["phase"] == "proposer":
        # 1. a pair for each of the next passages, 2. the frozen solver's attempts at it, 3. the reward (HRPO: by hops)
        proposals = propose(cfg, tools, (before * card.steps + place) * size, size, card.proposer.samples, trained=True)
        proposals, attempts = assess(cfg, tools, proposals)
        episodes = proposals + attempts
        metrics = measure(PROPOSER, PROPOSER, proposals) | measure("attempts", SOLVER, attempts)
    elif memory["phase"] == "data":
        # 4. several proposals for each passage of the iteration's partition, of which the best format counts
        count, (low, high) = min(size, card.partition - place * size), card.window or (-1.0, 1.0)
        written = propose(cfg, tools, before * card.partition + place * size, count, card.samples)
        groups = [written[first : first + card.samples] for first in range(0, len(written), card.samples)]
        best = [max(group, key=lambda each: each.parts["format"]) for group in groups]  # the first of equal ones
        best, attempts = assess(cfg, tools, best) if card.window else (best, [])
        new = [{name: x.text[name] for name in PAIR} for x in best if low <= x.parts.get("solved", -1.0) <= high]
        episodes, metrics = written + attempts, measure("data", PROPOSER, best) | {"data/kept": len(new) / count}
    else:
        # 5. the solver learns from the next pairs (GRPO)
        episodes = solve(cfg, tools, memory["pairs"][place * size :][:size], card.solver.samples, trained=True)
        metrics = measure(SOLVER, SOLVER, episodes)
    return episodes, advance(cfg, memory, new), metrics | {"iteration": float(memory["iteration"])}


def start(iteration: int) -> Memory:
    """The memory at the beginning of an iteration; they count from 1."""
    return {"iteration": iteration, "phase": "proposer", "place": 0, "pairs": []}


def advance(cfg: Config, memory: Memory, new: Pairs) -> Memory:
    """The memory after a step. The second phase ends early with enough pairs, the third when all are used."""
    card, size, phase, place = cfg.options(Options), cfg.train.batch_size, memory["phase"], memory["place"] + 1
    pairs = [*memory["pairs"], *new][: card.steps * size]
    unwritten = min(card.steps * size - len(pairs), card.partition - place * size)
    left = {"proposer": card.steps - place, "data": unwritten, "solver": len(pairs) - place * size}[phase]
    if left > 0:
        return memory | {"place": place, "pairs": pairs}
    following = "data" if phase == "proposer" else "solver" if phase == "data" and pairs else None
    return memory | {"phase": following, "place": 0, "pairs": pairs} if following else start(memory["iteration"] + 1)


def prompt(cfg: Config, role: str, **values: str) -> Messages:
    shown = {name: prompting.shown(cfg, value) for name, value in values.items()}
    return prompting.for_searcher(cfg, cfg.options(Options).prompts, role, shown, tuple(shown))


def ask(cfg: Config, tools: Tools, role: str, prompts: Sequence[Messages], samples: int) -> Iterator[Asked]:
    """`samples` rollouts of each prompt, in order."""
    card = getattr(cfg.options(Options), role)
    rollouts = [Rollout(f"{number}", messages) for number, messages in enumerate(prompts)]
    fields = {"role": role, "policy": role, "temperature": card.sampling.temperature}
    groups = tools.play(role, rollouts, Agent.of_role(card, role, **searching.until("answer")), samples)
    for number, group in enumerate(groups):
        yield from ((number, completion, {"prompt": prompts[number], **fields}) for completion in group)


def propose(cfg: Config, tools: Tools, first: int, count: int, samples: int, trained: bool = False) -> list[Episode]:
    """`samples` proposals for each passage from position `first` of the stream on, rewarded for their format only."""
    card, dialect, prompts, passages, episodes = cfg.options(Options), dialects.load(cfg.model.dialect), [], [], []
    weights_H = np.asarray(card.hops) / sum(card.hops)
    for place, row in enumerate(tools.rows(first, count), start=first):
        hops = 1 + int(rng("dr_zero hops", cfg.seed, place).choice(len(weights_H), p=weights_H))
        key, text = documents.document_of(row)
        text = documents.cut(text, card.document_tokens, tools.tokens)
        prompts.append(prompt(cfg, PROPOSER, document=text, hops=f"{hops}"))
        passages.append((key, text, hops))
    for number, completion, fields in ask(cfg, tools, PROPOSER, prompts, samples):
        key, text, hops = passages[number]
        question, answer, parts = rules.read_pair(completion, text, hops, dialect)
        written = dict(zip(PAIR, (" ".join(question.split()[: card.question_words]), answer, key, hops), strict=True))
        fields["group"] = f"{PROPOSER}/{hops} hops" if samples == 1 else f"{PROPOSER}/{number}"
        fields |= {"text": written, "reward": card.format * parts["format"], "parts": parts, "trained": trained}
        episodes.append(Episode.from_completion(completion, **fields))
    return episodes


def solve(cfg: Config, tools: Tools, pairs: Pairs, samples: int, trained: bool = False) -> list[Episode]:
    """`samples` attempts at each pair's question, with reward 1 for its answer, else 0. When they only measure its
    difficulty, one without <answer> answers with its whole last turn."""
    prompts, episodes = [prompt(cfg, SOLVER, question=pair["question"]) for pair in pairs], []
    for number, completion, fields in ask(cfg, tools, SOLVER, prompts, samples):
        pair, answer = {name: pairs[number][name] for name in PAIR}, rules.answer_of(completion, whole=not trained)
        right = answer is not None and exact_match(answer, [pair["answer"]])
        parts = {"searches": float(searching.searches_run(cfg, completion))}
        fields |= {"text": {**pair, "prediction": answer}, "reward": float(right), "parts": parts, "trained": trained}
        episodes.append(Episode.from_completion(completion, group=f"{SOLVER}/{number}", **fields))
    return episodes


def assess(cfg: Config, tools: Tools, proposals: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
    """(the proposals, well-formed ones with their difficulty in reward and parts; the solver's attempts at these)."""
    card, done = cfg.options(Options), [*proposals]
    places = [place for place, proposal in enumerate(proposals) if proposal.parts["format"]]
    attempts = solve(cfg, tools, [proposals[place].text for place in places], card.attempts)
    for number, place in enumerate(places):
        right = sum(episode.reward == 1 for episode in attempts[number * card.attempts :][: card.attempts])
        parts = {"difficulty": rules.difficulty(right, card.attempts), "solved": right / card.attempts}
        reward = proposals[place].reward + card.difficulty * parts["difficulty"]
        done[place] = replace(proposals[place], reward=reward, parts={**proposals[place].parts, **parts})
    return done, attempts


def measure(name: str, role: str, episodes: Sequence[Episode]) -> Metrics:
    """Metrics of the episodes of a role, under a name."""
    hops = Counter(episode.text["hops"] for episode in episodes)
    shares = {f"{name}/hops_{number}": count / len(episodes) for number, count in sorted(hops.items())}
    return means(parts_of(role, episodes, *PARTS, prefix=name)) | shares


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    hops = (f"hops_{number}" for number in range(1, len(cfg.options(Options).hops) + 1))
    names = ("reward", *PARTS, *hops)
    yield from ("iteration", "data/kept", *metric_names.of(dict.fromkeys((*POLICIES, "attempts", "data"), names)))


def exam(cfg: Config) -> Exam:
    """Questions answered as in training."""
    return Exam(
        SOLVER,
        lambda row, tokens: prompt(cfg, SOLVER, question=row["question"]),
        rules.answer_of,
        ("accuracy",),
        max_turns=cfg.options(Options).solver.max_turns,
        searches=lambda completion: searching.searches_run(cfg, completion),
        **searching.until("answer"),
    )


def check_prompts(cfg: Config) -> None:
    """Fills in both prompts."""
    prompt(cfg, SOLVER, question="")
    prompt(cfg, PROPOSER, document="", hops="1")


GAME = Game(
    "dr_zero",
    Options,
    play,
    lambda cfg: tuple(Update(x, getattr(cfg.options(Options), x).loss, (RoleShare(x),)) for x in POLICIES),
    exam,
    data=("documents",),
    policies=lambda cfg: POLICIES,
    searches=True,
    system_messages=lambda cfg: templates.system_files(cfg.options(Options).prompts, POLICIES),
    check_prompts=check_prompts,
    start=lambda cfg: start(1),
    finished=lambda cfg, memory, step: memory["iteration"] > cfg.options(Options).iterations,
    iterations=lambda cfg, memory: memory["iteration"] - 1,
    waits=lambda cfg, memory: memory.get("place") == 0,  # a phase samples what the one before has trained
    resumable=("iterations",),
    panels=(ACCURACY, REWARD, Panel("Proposals", ("proposer/format", "proposer/difficulty"), True), GRADIENT),
    metrics=metrics,
    title="Dr. Zero",
)
