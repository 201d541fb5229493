"""R-Zero as a `Game`: the phases of an iteration, the learner's updates, metrics, the exam of its solver."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice
from math import ceil
from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.games.r_zero import rules
from scope_jax.games.r_zero.options import RZeroSection, check
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import metric_names, prompting, searching
from scope_jax.play.exams import Exam
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, REWARD, Game, Memory, Panel
from scope_jax.play.repetition import cluster_shares
from scope_jax.play.rewards import means, parts_of, shares
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.play.votes import equal, majorities
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

CHALLENGER, POOL, SOLVER = PHASES = ("challenger", "pool", "solver")
Groups = Sequence[Sequence[Completion]]
BINS = ("0.2", "0.4", "0.6", "0.8", "1.0")  # of p, upper bounds


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step of a phase. Pure: randomness is derived from the seed, and `memory` is not modified."""
    card, after = cfg.options(RZeroSection), memory | {"place": memory["place"] + 1}
    if memory["phase"] == CHALLENGER:  # section 3.2: the challenger is trained against the frozen solver
        episodes, _, values = ask(cfg, tools, CHALLENGER)
    elif memory["phase"] == POOL:  # section 3.3: the frozen challenger writes questions, some of which are kept
        episodes, items, values = ask(cfg, tools, POOL)
        after["items"] = [one for one in items if one["label"] and card.window[0] <= one["share"] <= card.window[1]]
        values |= {"pool/kept": float(len(after["items"])), "pool/yield": len(after["items"]) / card.pool}
    else:  # section 3.4: the solver is trained on them
        episodes, values = solve(cfg, tools, memory)
    after = moved_on(cfg, after)
    if after["skipped"] > memory["skipped"]:
        tools.tell(f"iteration {memory['iteration']}: no question is kept (r_zero.window); the solver is not trained.")
    return episodes, after, values | {"iteration": float(memory["iteration"]), "skipped": float(after["skipped"])}


def moved_on(cfg: Config, memory: Memory) -> Memory:
    """The memory at the start of the next phase if this one is over; without a kept question the solver has none."""
    card, skipped = cfg.options(RZeroSection), not memory["items"]
    steps = card.challenger_steps, 1, 0 if skipped else card.solver_steps
    while memory["place"] >= steps[at := PHASES.index(memory["phase"])]:
        ended = {"iteration": memory["iteration"] + 1, "skipped": memory["skipped"] + skipped, "items": []}
        memory = memory | {"phase": PHASES[(at + 1) % 3], "place": 0} | (ended if at == 2 else {})
    return memory


def ask(cfg: Config, tools: Tools, phase: str) -> tuple[list[Episode], list[dict[str, Any]], Metrics]:
    """(the challenger's episodes, its questions with labels, metrics)."""
    card, messages, learns, episodes = cfg.options(RZeroSection), prompt(cfg, CHALLENGER), phase == CHALLENGER, []
    prompts, samples = (card.challenger_batch, card.challenger.samples) if learns else (card.pool, 1)
    sampling, votes = (card.challenger.sampling, card.votes) if learns else (card.pool_sampling, card.pool_votes)
    rollouts = [Rollout(f"{place}", messages) for place in range(prompts)]
    agent = Agent.of_role(card.challenger, policy(cfg, CHALLENGER), sampling)
    groups = tools.play(CHALLENGER, rollouts, agent, samples)
    texts = [question_of(cfg, tools, said) for group in groups for said in group]
    valid = [text for text in texts if text]
    asked = [Rollout(f"{place}", prompt(cfg, SOLVER, question)) for place, question in enumerate(valid)]
    voters = tools.play("voter", asked, Agent.of_role(card.solver, policy(cfg, SOLVER), card.vote_sampling), votes)
    answers = [[answer_of(said) for said in group] for group in voters]
    voted = majorities(answers, partial(equal, tools), card.unanswered_agree)
    facts = zip(valid, voted, answers, strict=True)
    items = [{"question": one, "label": vote[0], "share": vote[1], "answers": own} for one, vote, own in facts]
    repeated = [0.0] * len(texts)  # of the pool, which is not trained and may have many thousands
    if learns:
        repeated = tools.once("clusters", lambda: cluster_shares(texts, card.repetition_distance))
    cases = [(one["label"], one["question"]) for one in items if rules.has_value(one["question"])]
    known = iter(items)
    for place, said in enumerate(said for group in groups for said in group):
        text = next(known) if texts[place] else {"question": None, "share": None}
        reward = rules.challenger_reward(text["share"], repeated[place], card)
        fields = {"role": CHALLENGER, "policy": policy(cfg, CHALLENGER), "group": f"{CHALLENGER}/{place // samples}"}
        fields |= {"reward": reward, "trained": learns, "temperature": sampling.temperature}
        episodes.append(Episode.from_completion(said, messages, text, **fields))
    bins = [BINS[max(ceil(round(one["share"] * 5, 6)), 1) - 1] for one in items]
    values = {
        "valid": map(bool, texts),
        "repetition": repeated if learns else (),
        "unique": [len(set(valid)) / len(valid)] if valid else [],
        "answered": [answer is not None for own in answers for answer in own],
        "agreement": [one["share"] for one in items],
        "label_right": equal(tools, cases),
    }
    return episodes, items, measure(phase, groups, episodes, values) | shares(f"{phase}/agreement_", bins, BINS)


def solve(cfg: Config, tools: Tools, memory: Memory) -> tuple[list[Episode], Metrics]:
    """The solver's episodes on the next kept questions, each once before any comes again; metrics."""
    card, kept, episodes = cfg.options(RZeroSection), memory["items"], []
    size = min(card.solver_batch, len(kept))
    generators = (rng("r_zero kept", cfg.seed, memory["iteration"], epoch) for epoch in count())
    order = chain.from_iterable(drawn(kept, len(kept), generator) for generator in generators)
    items = [*islice(order, memory["place"] * size, (memory["place"] + 1) * size)]
    rollouts = [Rollout(f"{place}", prompt(cfg, SOLVER, one["question"])) for place, one in enumerate(items)]
    groups = tools.play(SOLVER, rollouts, Agent.of_role(card.solver, policy(cfg, SOLVER)), card.solver.samples)
    said = [(items[place], place, each) for place, group in enumerate(groups) for each in group]
    agree = equal(tools, [(answer_of(each), one["label"]) for one, _, each in said])
    for (one, place, each), agrees in zip(said, agree, strict=True):
        reward = rules.solver_reward(agrees, each.text, card.format_weight)
        fields = {"role": SOLVER, "policy": policy(cfg, SOLVER), "group": f"{SOLVER}/{place}", "reward": reward}
        fields |= {"parts": {"agrees": float(agrees)}, "temperature": card.solver.sampling.temperature}
        text = {"question": one["question"], "label": one["label"], "prediction": answer_of(each)}
        episodes.append(Episode.from_completion(each, rollouts[place].messages, text, **fields))
    cases = [(answer_of(each), one["question"]) for one, _, each in said if rules.has_value(one["question"])]
    return episodes, measure(SOLVER, groups, episodes, {"agrees": agree, "right": equal(tools, cases)})


def measure(prefix: str, groups: Groups, episodes: Sequence[Episode], values: Mapping[str, Iterable[float]]) -> Metrics:
    """Means of values, of rewards and of lengths."""
    named = {f"{prefix}/{name}": [float(number) for number in numbers] for name, numbers in values.items()}
    named |= searching.lengths(prefix, [said for group in groups for said in group])
    named |= parts_of(episodes[0].role, episodes, prefix=prefix)
    return means(named)


def question_of(cfg: Config, tools: Tools, said: Completion) -> str:
    """The last `<question>` of a reply; "" without one, or if the solver's prompt does not hold it."""
    question = parsing.last(searching.contents(said), "question") or ""
    limit = min(cfg.options(RZeroSection).solver.max_prompt_tokens, cfg.rollout.max_length - 1)
    return question if question and tools.prompt_tokens(prompt(cfg, SOLVER, question)) <= limit else ""


def answer_of(said: Completion) -> str | None:
    """The content of the last box of an answer; None if there is none."""
    return parsing.boxed(said.content)


def prompt(cfg: Config, role: str, question: str | None = None) -> Messages:
    """The prompt of a role, filled in; raises PromptError."""
    values = {} if question is None else {"question": prompting.shown(cfg, question)}
    return prompting.for_role(cfg.options(RZeroSection).prompts, role, values, tuple(values))


def check_prompts(cfg: Config) -> None:
    """Fills in both prompts; raises PromptError."""
    for role, question in ((CHALLENGER, None), (SOLVER, "")):
        prompt(cfg, role, question)


def policy(cfg: Config, role: str) -> str:
    """The policy that plays a role."""
    return ACTOR if cfg.options(RZeroSection).policies == "shared" else role


def new_reference(cfg: Config, memory: Memory) -> str | None:
    """The policy whose phase begins, if its weights are the reference of the KL term there."""
    begins = memory["place"] == 0 and memory["phase"] != POOL and cfg.options(RZeroSection).reference == "phase"
    return policy(cfg, memory["phase"]) if begins else None


def updates(cfg: Config) -> tuple[Update, ...]:
    """GRPO of each role; a step trains one of them, or in the phase of the pool none."""
    losses = {role: getattr(cfg.options(RZeroSection), role).loss for role in (CHALLENGER, SOLVER)}
    return tuple(Update(policy(cfg, role), loss, (RoleShare(role),)) for role, loss in losses.items())


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    usual = f"reward {metric_names.LENGTHS}"
    asked = f"{usual} valid unique answered agreement label_right {' '.join(f'agreement_{b}' for b in BINS)}"
    families = {CHALLENGER: f"{asked} repetition", POOL: f"{asked} yield kept", SOLVER: f"{usual} agrees right"}
    yield from ("iteration", "skipped", *metric_names.of(families))


def exam(cfg: Config) -> Exam:
    """Questions answered as in training."""
    asked = lambda row, _: prompt(cfg, SOLVER, row["question"])  # noqa: E731
    return Exam(policy(cfg, SOLVER), asked, answer_of, ("accuracy",), accuracy=("same-text", "math"))


QUALITY = Panel("Questions: valid, distinct, kept, right labels", ("/valid", "/unique", "/yield", "/label_right"), True)
GAME = Game(
    name="r_zero",
    title="R-Zero",
    options=RZeroSection,
    play=play,
    updates=updates,
    exam=exam,
    source=lambda cfg: None,
    check=check,
    policies=lambda cfg: tuple(dict.fromkeys(policy(cfg, role) for role in (CHALLENGER, SOLVER))),
    check_prompts=check_prompts,
    start=lambda cfg: moved_on(cfg, {"iteration": 1, "phase": CHALLENGER, "place": 0, "items": [], "skipped": 0}),
    finished=lambda cfg, memory, step: memory["iteration"] > cfg.options(RZeroSection).iterations,
    iterations=lambda cfg, memory: memory["iteration"] - 1,
    waits=lambda cfg, memory: memory.get("place") == 0,  # a phase samples what the one before has trained
    new_reference=new_reference,
    batch="r_zero.challenger_batch and r_zero.solver_batch",
    resumable=("iterations",),
    panels=(ACCURACY, QUALITY, Panel("Share of the majority", ("/agreement",), True), REWARD, GRADIENT),
    metrics=metrics,
)
