"""What has to hold of a card: one list of rules, which `check` goes through to its end, and `train`, `eval` and `plan`
up to the first fault."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from scope_jax.config import Config, EvalSet
from scope_jax.errors import UserError, sentence
from scope_jax.rollouts.programs import check_cascade
from scope_jax.rollouts.verification import check_drafts
from scope_jax.run import card_rules, file_rules
from scope_jax.run.engines import check_budget, replays
from scope_jax.run.opened import FAULTS, Doubt, OpenedCard, WithExample

T = TypeVar("T")
Need = Literal[
    "training",
    "beginning",  # the first step is to be played, from the weights that the card names
    "model",
    "tokenizer",
    "policies",
    "teachers",
    "encoder",
    "files",
    "tools",
    "services",
    "origin",
]
ALL: frozenset[Need] = frozenset(get_args(Need))
SAMPLING = ALL - frozenset[Need](
    ("training", "beginning", "policies", "teachers", "origin")
)  # where nothing is trained


@dataclass(frozen=True)
class Rule:
    """Something that has to hold."""

    name: str
    """What `check` calls it, with a place for the item."""
    needs: tuple[Need, ...]
    """What has to be here: a machine without it leaves the rule out."""
    holds: Callable[..., object]
    """Of the opened card, and an item: a text says what was found, a `Doubt` what may be wrong with it. Raises
    UserError or OSError, one sentence."""
    items: Callable[[OpenedCard], Iterable[Any]] | None = None
    """Of a rule that holds for each of several items: these."""


@dataclass(frozen=True)
class Finding:
    """What became of a rule: its name, and what was found, or what is wrong, or may be (`doubtful`)."""

    name: str
    text: str
    wrong: bool
    doubtful: bool = False
    example: str = ""
    """Lines that are shown below it."""


def check(cfg: Config, left: Collection[str] = ()) -> Iterator[Finding]:
    """A finding for each rule that fails, or has something to say; a fault that several of them meet is told once.

    left: models that are not opened, as they are on the hub. Errors that are not the user's are raised.
    """
    opened = OpenedCard(cfg)
    told: list[str] = []
    try:
        for name, result in _outcomes(opened, _here(cfg, lambda folder: folder not in left)):
            if isinstance(result, FAULTS):
                text = sentence(result)
                if text not in told:
                    yield Finding(name, text, True)
                told.append(text)
            elif isinstance(result, str) and result:
                example = result.example if isinstance(result, WithExample) else ""
                yield Finding(name, result, False, isinstance(result, Doubt), example)
    finally:
        opened.close()


def enforce(opened: OpenedCard, here: frozenset[Need], tell: Callable[[str], None] | None = None) -> None:
    """Raises the first fault among the rules that need only what is `here`; `tell` gets the doubts."""
    for name, result in _outcomes(opened, here):
        if isinstance(result, FAULTS):
            raise result
        if isinstance(result, Doubt) and tell is not None:
            tell(f"{name}: {result}")


def plannable(cfg: Config, given: bool = False) -> frozenset[Need]:
    """What a plan looks at: the card, the model, and what of tokenizer and other models is on this machine. given: the
    model's config.json is another one than the card's, so that these do not belong to it."""
    here = _here(cfg, lambda folder: Path(folder).is_dir() and not given)
    return here.difference(("beginning", "encoder", "files", "tools", "services", "origin")) | frozenset[Need](
        ("model",)
    )


def _here(cfg: Config, is_here: Callable[[str], bool]) -> frozenset[Need]:
    """All but what needs a model's folder that is not here."""
    teachers = [teacher.checkpoint for teacher in cfg.teachers.values() if teacher.checkpoint is not None]
    encoder = cfg.retrieval.encoder.checkpoint if cfg.retrieval is not None else None
    folders: dict[Need, Sequence[str]] = {
        "model": (cfg.model.checkpoint,),
        "tokenizer": (cfg.model.tokenizer or cfg.model.checkpoint,),
        "policies": tuple(cfg.model.policies.values()),
        "teachers": teachers,
        "encoder": () if encoder is None else (encoder,),
    }
    return ALL.difference(need for need, needed in folders.items() if not all(map(is_here, needed)))


def _outcomes(opened: OpenedCard, here: frozenset[Need]) -> Iterator[tuple[str, object]]:
    """(name, what it found or what is wrong) of each rule and item."""
    for rule in RULES:
        if not here.issuperset(rule.needs):
            continue
        if rule.items is None:
            yield rule.name, _tried(partial(rule.holds, opened))
            continue
        items = _tried(partial(rule.items, opened))
        if isinstance(items, FAULTS):
            yield rule.name, items
            continue
        for item in items:
            yield rule.name.format(item), _tried(partial(rule.holds, opened, item))


def _tried(work: Callable[[], T]) -> T | OSError | UserError:
    try:
        return work()
    except FAULTS as wrong:
        return wrong


# ------------------------------------------------------------------------------------------------------------ the list
FIRST: tuple[Need, ...] = (
    "training",
    "beginning",
    "tokenizer",
    "tools",
    "files",
)  # of what is sampled or trained first


def _starts(card: OpenedCard) -> Iterable[str]:
    return sorted({*card.cfg.model.policies.values()} - {card.folder})


def _teachers(card: OpenedCard) -> Iterable[str]:
    return [name for name, teacher in card.cfg.teachers.items() if teacher.checkpoint is not None]


def _endpoints(card: OpenedCard) -> Iterable[str]:
    return [name for name, teacher in card.cfg.teachers.items() if teacher.endpoint is not None]


def _sets(card: OpenedCard) -> Iterable[EvalSet]:
    return card.cfg.evaluate.sets


def _drafts(card: OpenedCard) -> None:
    check_drafts(card.cfg.rollout.draft_tokens, card.cfg.rollout.cascade, card.model)


RULES = (
    Rule("game", ("training",), card_rules.game),
    Rule("policies", ("training",), card_rules.policies),
    Rule("names of teachers", ("training",), card_rules.teacher_names),
    Rule("weights or a cache in 8 bits", ("training",), card_rules.quantization),
    Rule("steps played ahead", ("training",), card_rules.ahead),
    Rule("steps that overlap", ("training",), card_rules.overlapping),
    Rule("replay of experts", ("training",), card_rules.replay),
    Rule("measures", ("training",), card_rules.measures),
    Rule("calls of roles", ("training",), card_rules.calls),
    Rule("reference", ("training",), card_rules.reference),
    Rule("source of the data", ("training",), lambda card: card.source),
    Rule("model {}", ("training", "beginning", "model", "files"), file_rules.stored, lambda card: [card.folder]),
    Rule("tokenizer and template", ("tokenizer",), card_rules.template),
    Rule("ends of replies", ("tokenizer",), card_rules.ends),
    Rule("vocabulary", ("model", "tokenizer"), card_rules.vocabulary),
    Rule("length of episodes", ("model",), card_rules.positions),
    Rule("experts", ("model",), lambda card: replays(card.cfg, card.model)),
    Rule("mesh", ("model",), card_rules.mesh),
    Rule("cache", ("model",), lambda card: check_budget(card.cfg, card.model)),
    Rule("cascade", ("model",), lambda card: check_cascade(card.cfg.rollout.cascade, card.model)),
    Rule("drafts", ("model",), _drafts),
    Rule("adapters", ("model",), card_rules.adapter),
    Rule("models of policies", ("training", "model", "policies"), file_rules.beginnings),
    Rule("model {}", ("training", "beginning", "policies", "files"), file_rules.stored, _starts),
    Rule("teacher {}", ("training", "tokenizer", "teachers"), file_rules.teacher, _teachers),
    Rule("prompts", ("training", "files"), file_rules.prompts),
    Rule("data", ("training", "files"), file_rules.data),
    Rule("exam {.name}", ("training", "files"), file_rules.exam, _sets),
    Rule("answers", ("training", "beginning", "files", "services"), file_rules.answers),
    Rule("encoder", ("encoder", "files"), file_rules.encoder),
    Rule("search", ("services",), file_rules.search),
    Rule("origin", ("origin",), file_rules.origin),
    Rule("tools", ("tools",), file_rules.tools),
    Rule("turns", ("tokenizer", "tools"), file_rules.turns),
    Rule("services of tools", ("services",), file_rules.services),
    Rule("endpoint of teacher {}", ("training", "tokenizer", "services"), file_rules.endpoint, _endpoints),
    Rule("model behind {}", ("services",), file_rules.judge, lambda card: card.judges),
    Rule("first prompts", FIRST, file_rules.sampled_first),
    Rule("given answers", FIRST, file_rules.trained),
    Rule("prompts of exam {.name}", FIRST, file_rules.exam_prompts, _sets),
)
