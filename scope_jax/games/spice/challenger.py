"""SPICE's challenger: draws documents and writes tasks from them in two stages (section 2.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.spice import contracts, instructions, rules
from scope_jax.games.spice.options import options
from scope_jax.games.spice.records import MULTIPLE_CHOICE, Attempt, Document, Stage, StageReply
from scope_jax.play import searching
from scope_jax.play.documents import document_of, segments
from scope_jax.play.game import ACTOR
from scope_jax.play.prompting import shown
from scope_jax.play.tools import BASE, Agent, Rollout, Tools
from scope_jax.retrieval.rows import Row
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

OUTSIDE = "challenger"  # name of the external challenger among the external models of a run


def learns(cfg: Config) -> bool:
    """True if the challenger's episodes are trained."""
    return options(cfg).train in ("both", "challenger")


def policy_of(cfg: Config) -> str:
    """The model that plays the challenger: actor, base or external model."""
    if options(cfg).challenger.endpoint is not None:
        return OUTSIDE
    return BASE if options(cfg).challenger.model == "base" else ACTOR


def documents(cfg: Config, tools: Tools, rows: Sequence[Row], first: int) -> list[Document]:
    """d ~ D: one segment of each row's document, drawn uniformly.

    first: position of the first row in the stream, which seeds the draw.
    """
    made = []
    for place, row in enumerate(rows):
        key, text = document_of(row)
        parts = segments(shown(cfg, text), options(cfg).document_tokens, tools.tokens)
        drawn = int(rng("spice segment", cfg.seed, first + place).integers(len(parts)))
        made.append(Document(place, key, parts[drawn]))
    return made


# ------------------------------------------------------------------------------------------------------------ attempts
def attempt(cfg: Config, tools: Tools, batch: Sequence[Document]) -> list[list[Attempt]]:
    """{(qᵢ, aᵢ*)}: attempts at each document, sampled in rounds until enough are valid or there are N (section 3.1).

    Every round has twice as many attempts at a document as the one before. The attempts of a document are numbered
    consecutively, and the number seeds their sampling, so that they do not depend on how many rounds other documents
    take. A document whose first prompt is too long gets one round: all others would fail in the same way.
    """
    made: list[list[Attempt]] = [[] for _ in batch]
    first = 0
    for count in round_sizes(cfg):
        open_places = [place for place, tries in enumerate(made) if _worth_a_round(cfg, tries)]
        if not open_places:
            break
        if first:
            tools.tell(_before_a_round(cfg, [made[place] for place in open_places], len(batch), count))
        for one in _round(cfg, tools, [batch[place] for place in open_places], first, count):
            made[one.document.place].append(one)
        first += count
    return made


def round_sizes(cfg: Config) -> list[int]:
    """Attempts at a document in each round, together N: `attempts_per_round`, twice as many, …

    A challenger that is not trained starts with one: of its attempts, only a valid one for the reasoner is used.
    """
    sizes, left = [], options(cfg).max_attempts
    size = options(cfg).attempts_per_round if learns(cfg) else 1
    while left:
        sizes.append(min(size, left))
        left, size = left - sizes[-1], 2 * size
    return sizes


def _worth_a_round(cfg: Config, tries: Sequence[Attempt]) -> bool:
    unreadable = any(one.reason == "prompt_too_long" and len(one.replies) == 1 for one in tries)
    wanted = options(cfg).valid_wanted if learns(cfg) else 1
    return not unreadable and sum(one.valid for one in tries) < wanted


def _before_a_round(cfg: Config, tries: Sequence[Sequence[Attempt]], documents: int, count: int) -> str:
    """What the user is told before another round: how many attempts so far count, and why the others do not."""
    attempts = [one for group in tries for one in group]
    reasons = Counter(one.reason for one in attempts if one.reason).most_common(2)
    why = ", ".join(f"{number / len(attempts):.0%} {reason}" for reason, number in reasons)
    return (
        f"{len(tries)} of {documents} documents lack valid tasks after {len(tries[0])} of at most "
        f"{options(cfg).max_attempts} attempts each: {sum(one.valid for one in attempts)} of {len(attempts)} are valid "
        f"({why or 'none is rejected'}); {count} more at each."
    )


def _round(cfg: Config, tools: Tools, batch: Sequence[Document], first: int, count: int) -> list[Attempt]:
    """Attempts `first` … `first + count` at each document."""
    choices = _formats(cfg, tools, batch, first, count)
    prompts = [
        (f"{document.place} task {number}", instructions.for_task(cfg, document, kind))
        for document, number, _, kind, _ in choices
        if kind
    ]
    task_replies = iter(_generate(cfg, tools, "task", prompts, 1))
    made = []
    for document, number, replies, kind, reason in choices:
        task = None
        if kind:
            (reply,) = next(task_replies)
            replies = (*replies, reply)
            reason = _missing(reply)
            if not reason:
                task, reason = contracts.task_of(reply.text, kind, options(cfg).max_answer_words)
        if task is not None and not _fits(cfg, tools, task.question):
            task, reason = None, "question_too_long"
        made.append(Attempt(document, number, replies, task, reason))
    return made


# document, number of the attempt, replies, kind of task ("" if none was chosen), and the reason if none was
FormatChoice = tuple[Document, int, tuple[StageReply, ...], str, str]


def _formats(cfg: Config, tools: Tools, batch: Sequence[Document], first: int, count: int) -> list[FormatChoice]:
    """The first stage of a round; skipped if the only format offered is multiple choice, which has no answer types."""
    numbers = range(first, first + count)
    if options(cfg).formats == "multiple-choice":
        return [(document, number, (), MULTIPLE_CHOICE, "") for document in batch for number in numbers]
    prompts = [(f"{one.place} format {first}", instructions.for_format(cfg, one)) for one in batch]
    choices: list[FormatChoice] = []
    for document, group in zip(batch, _generate(cfg, tools, "format", prompts, count), strict=True):
        for number, reply in zip(numbers, group, strict=True):
            reason, kind = _missing(reply), ""
            if not reason:
                kind, reason = contracts.format_of(cfg, reply.text)
            choices.append((document, number, (reply,), kind, reason))
    return choices


def _missing(reply: StageReply) -> str:
    """Why there is no reply, "" if there is one."""
    if reply.refused:
        return "refused"
    return "prompt_too_long" if reply.completion is not None and not reply.completion.turns else ""


def _fits(cfg: Config, tools: Tools, question: str) -> bool:
    tokens = tools.prompt_tokens(instructions.for_reasoner(cfg, question))
    return tokens <= options(cfg).reasoner.max_prompt_tokens and tokens < cfg.rollout.max_length


def _generate(
    cfg: Config, tools: Tools, stage: Stage, prompts: Sequence[tuple[str, Messages]], samples: int
) -> list[list[StageReply]]:
    """`samples` replies to each (name, prompt)."""
    card = options(cfg).challenger
    if not prompts:
        return []
    if card.endpoint is not None:
        return _generate_externally(cfg, tools, stage, [prompt for _, prompt in prompts], samples)
    limit = card.max_prompt_tokens
    agent = Agent(policy_of(cfg), card.sampling, max_prompt_tokens=limit, tempered=options(cfg).loss.tempered)
    groups = tools.play("challenger", [Rollout(name, prompt) for name, prompt in prompts], agent, samples)
    return [
        [StageReply(stage, prompt, searching.reply_text(completion), completion) for completion in group]
        for (_, prompt), group in zip(prompts, groups, strict=True)
    ]


def _generate_externally(
    cfg: Config, tools: Tools, stage: Stage, prompts: Sequence[Messages], samples: int
) -> list[list[StageReply]]:
    sampling = options(cfg).challenger.sampling
    flat = [prompt for prompt in prompts for _ in range(samples)]
    replies = tools.judge(
        [prompt.text for prompt in flat], by=OUTSIDE, temperature=sampling.temperature, max_tokens=sampling.max_tokens
    )
    parsed = [
        # A reply that was cut holds no task, though some object within it may be closed.
        StageReply(stage, prompt, "" if reply.cut else parsing.without_thinking(reply.text), None, bool(reply.refused))
        for prompt, reply in zip(flat, replies, strict=True)
    ]
    return [parsed[first : first + samples] for first in range(0, len(parsed), samples)]


# ---------------------------------------------------------------------------------------------------------- selection
def keep(cfg: Config, made: Sequence[Sequence[Attempt]], step: int) -> list[list[Attempt]]:
    """T_C of each document: G of its attempts in their valid:invalid ratio."""
    return [
        rules.subsample(attempts, options(cfg).challenger.samples, rng("spice attempts", cfg.seed, step, place))
        for place, attempts in enumerate(made)
    ]


def select(cfg: Config, kept: Sequence[Sequence[Attempt]], step: int) -> list[Attempt]:
    """One valid attempt per document that has any, drawn uniformly: the task the reasoner is trained on."""
    chosen = []
    for place, attempts in enumerate(kept):
        valid = [one for one in attempts if one.valid]
        if valid:
            chosen.append(valid[int(rng("spice task", cfg.seed, step, place).integers(len(valid)))])
    return chosen
