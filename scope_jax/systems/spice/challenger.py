"""SPICE's challenger: documents, and attempts at tasks from them in two stages (section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.rows import Row
from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.play import searching
from scope_jax.play.defaults import ACTOR
from scope_jax.play.documents import document_of, segments
from scope_jax.play.prompting import shown
from scope_jax.play.tools import BASE, Prompt, Tools, sample
from scope_jax.systems.spice import contracts, instructions, rules
from scope_jax.systems.spice.records import MULTIPLE_CHOICE, Attempt, Document, Said, Stage
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

OUTSIDE = "challenger"  # the outside model, among the judges of a run


def learns(cfg: Config) -> bool:
    """True if the challenger's episodes are trained."""
    return cfg.spice.train in ("both", "challenger")


def speaker(cfg: Config) -> str:
    """Who is the challenger: the actor, the base or the outside model."""
    if cfg.spice.challenger.endpoint is not None:
        return OUTSIDE
    return BASE if cfg.spice.challenger.model == "base" else ACTOR


def documents(cfg: Config, tools: Tools, rows: Sequence[Row], first: int) -> list[Document]:
    """d ~ D: a segment of each row's document, one drawn evenly where it has several.

    first: the position of the first row in the stream; it names what is drawn.
    """
    made = []
    for place, row in enumerate(rows):
        key, text = document_of(row)
        parts = segments(shown(cfg, text), cfg.spice.document_tokens, tools.tokens)
        drawn = int(rng("spice segment", cfg.seed, first + place).integers(len(parts)))
        made.append(Document(place, key, parts[drawn]))
    return made


# ------------------------------------------------------------------------------------------------------------ attempts
def attempt(cfg: Config, tools: Tools, batch: Sequence[Document]) -> list[list[Attempt]]:
    """{(qᵢ, aᵢ*)}: attempts at each document, drawn in rounds until enough are valid or there are N (section 3.1).

    The attempts of a document are numbered through, and the number names their random numbers: how many rounds another
    document takes changes nothing.
    """
    card, made = cfg.spice, [[] for _ in batch]
    first = 0
    while first < card.max_attempts:
        open_places = [place for place, own in enumerate(made) if sum(a.valid for a in own) < card.valid_wanted]
        if not open_places:
            break
        count = min(card.attempts_per_round, card.max_attempts - first)
        for one in _round(cfg, tools, [batch[place] for place in open_places], first, count):
            made[one.document.place].append(one)
        first += count
    return made


def _round(cfg: Config, tools: Tools, batch: Sequence[Document], first: int, count: int) -> list[Attempt]:
    """Attempts `first` … `first + count` at each document."""
    begun = _formats(cfg, tools, batch, first, count)
    asked = [
        (f"{document.place} task {number}", instructions.for_task(cfg, document, kind))
        for document, number, _, kind, _ in begun
        if kind
    ]
    written = iter(_say(cfg, tools, "task", asked, 1))
    made = []
    for document, number, said, kind, reason in begun:
        task = None
        if kind:
            (last,) = next(written)
            said = (*said, last)
            reason = _missing(last)
            if not reason:
                task, reason = contracts.task_of(last.text, kind, cfg.spice.max_answer_words)
        if task is not None and not _fits(cfg, tools, task.question):
            task, reason = None, "question_too_long"
        made.append(Attempt(document, number, said, task, reason))
    return made


Begun = tuple[Document, int, tuple[Said, ...], str, str]  # with the number, the kind of task and why there is none


def _formats(cfg: Config, tools: Tools, batch: Sequence[Document], first: int, count: int) -> list[Begun]:
    """The first stage of a round; none where only one format is offered that has no types."""
    numbers = range(first, first + count)
    if cfg.spice.formats == "multiple-choice":
        return [(document, number, (), MULTIPLE_CHOICE, "") for document in batch for number in numbers]
    asked = [(f"{one.place} format {first}", instructions.for_format(cfg, one)) for one in batch]
    begun: list[Begun] = []
    for document, group in zip(batch, _say(cfg, tools, "format", asked, count), strict=True):
        for number, said in zip(numbers, group, strict=True):
            reason, kind = _missing(said), ""
            if not reason:
                kind, reason = contracts.format_of(cfg, said.text)
            begun.append((document, number, (said,), kind, reason))
    return begun


def _missing(said: Said) -> str:
    """Why nothing was said at all, "" if something was."""
    if said.refused:
        return "refused"
    return "prompt_too_long" if said.completion is not None and not said.completion.turns else ""


def _fits(cfg: Config, tools: Tools, question: str) -> bool:
    prompt = tools.encode_prompt(instructions.for_reasoner(cfg, question))
    return len(prompt) <= cfg.spice.reasoner.max_prompt_tokens


def _say(
    cfg: Config, tools: Tools, stage: Stage, asked: Sequence[tuple[str, Messages]], samples: int
) -> list[list[Said]]:
    """`samples` replies to each of the prompts, which come with their names."""
    card = cfg.spice.challenger
    if not asked:
        return []
    if card.endpoint is not None:
        return _outside(cfg, tools, stage, [prompt for _, prompt in asked], samples)
    ids = {prompt: tools.encode_prompt(prompt) for prompt in {prompt for _, prompt in asked}}  # long, and many alike
    groups = sample(
        tools,
        "challenger",
        [Prompt(ids[prompt], name, prompt) for name, prompt in asked],
        samples,
        card.sampling,
        policy=speaker(cfg),
        max_prompt_tokens=card.max_prompt_tokens,
        tempered=cfg.spice.loss.tempered,
    )
    return [
        [Said(stage, prompt, "".join(searching.contents(completion)), completion) for completion in group]
        for (_, prompt), group in zip(asked, groups, strict=True)
    ]


def _outside(cfg: Config, tools: Tools, stage: Stage, prompts: Sequence[Messages], samples: int) -> list[list[Said]]:
    sampling = cfg.spice.challenger.sampling
    flat = [prompt for prompt in prompts for _ in range(samples)]
    replies = tools.judge(
        [prompt.text for prompt in flat], by=OUTSIDE, temperature=sampling.temperature, max_tokens=sampling.max_tokens
    )
    said = [
        Said(stage, prompt, parsing.without_thinking(reply.text), None, bool(reply.refused))
        for prompt, reply in zip(flat, replies, strict=True)
    ]
    return [said[first : first + samples] for first in range(0, len(said), samples)]


# ------------------------------------------------------------------------------------------------------ what is kept
def keep(cfg: Config, made: Sequence[Sequence[Attempt]], step: int) -> list[list[Attempt]]:
    """T_C of each document: G of its attempts in their valid:invalid ratio."""
    return [
        rules.subsample(own, cfg.spice.challenger.samples, rng("spice attempts", cfg.seed, step, place))
        for place, own in enumerate(made)
    ]


def select(cfg: Config, kept: Sequence[Sequence[Attempt]], step: int) -> list[Attempt]:
    """One valid attempt of each document that has any, drawn evenly: the task that the reasoner learns from."""
    chosen = []
    for place, own in enumerate(kept):
        valid = [one for one in own if one.valid]
        if valid:
            chosen.append(valid[int(rng("spice task", cfg.seed, step, place).integers(len(valid)))])
    return chosen
