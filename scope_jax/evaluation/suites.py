"""Suites, the benchmarks of configs/exams, as evaluation sets.

A suite is answered as the card's game answers questions, with its prompt, turns and searches, if the suite lists the
game and a card is given. Any other model gets the prompt of the suite's form, in one turn, without searches: a form has
a prompt file in the exams' folder (`evaluate.prompts`, `<form>.txt`) and a rule for where the answer is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.config import Config, EvalSet, Measure, SamplingSection, parse_section
from scope_jax.config.exams import EvalSection
from scope_jax.config.suites import Form, SuiteCard
from scope_jax.config.tables import RolloutSection
from scope_jax.data.schemas import Kind
from scope_jax.evaluation.measuring import ExamSet
from scope_jax.games import game_of, overridden
from scope_jax.play import exams, prompting
from scope_jax.play.documents import without_middle
from scope_jax.play.exams import Exam, Row, Tokens
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.searching import cut_off
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

REPLY = 1024  # tokens of a reply where neither the suite nor the card says how many

KINDS: Mapping[Form, Kind] = {
    "short": "questions",
    "math": "questions",
    "choice": "choices",
    "open": "questions",  # with a rubric: tasks or marked, by the measure
    "document": "readings",
}
ACCURACY: Mapping[Form, tuple[Measure, ...]] = {  # one of these accepts a right answer
    "short": ("exact-match",),
    "math": ("same-text", "math"),  # SPICE App. 7
    "choice": ("exact-match",),
    "open": ("exact-match",),
}


def _last_answer(text: str) -> str | None:
    return parsing.last([text], "answer") or None


def _chosen(text: str) -> str | None:
    """The last box, else the text after the last "Answer:", else the last line, where many models write "the answer is
    (B)"."""
    return parsing.boxed(text) or parsing.labelled_answer(text) or parsing.with_options_above(text).strip() or None


def _labelled(text: str) -> str | None:
    """The text after the last "Answer:", else the last box."""
    return parsing.labelled_answer(text) or parsing.boxed(text)


READ: Mapping[Form, Callable[[str], str | None]] = {
    "short": _last_answer,
    "math": parsing.boxed,
    "choice": _chosen,
    "open": lambda text: text.strip() or None,
    "document": _labelled,
}
# Of a reply that was cut, what is closed counts, and what a finished line says; a text without an end is no answer.
READ_CUT: Mapping[Form, Callable[[str], str | None]] = {
    "short": _last_answer,
    "math": parsing.boxed,
    "choice": lambda text: parsing.boxed(text) or parsing.labelled_answer(parsing.finished_lines(text)),
    "open": lambda text: None,
    "document": lambda text: parsing.labelled_answer(parsing.finished_lines(text)) or parsing.boxed(text),
}


def suite_sets(
    cfg: Config,
    wanted: Sequence[SuiteCard],
    as_game: bool,
    overrides: Sequence[str],
    given: frozenset[str],
    tell: Callable[[str], None],
) -> list[ExamSet]:
    """The suites with their rows and prompts, checked as in `ExamSet.load`.

    as_game: the card's game may answer with its own prompt. overrides: of the card. given: keys of the suites that the
    command sets, over which nothing in the card has a say.
    """
    _tell_unjudged(cfg, wanted, tell)
    return [_suite_set(cfg, _with_limits(cfg, suite, overrides, given), as_game, given) for suite in wanted]


def _suite_set(cfg: Config, suite: SuiteCard, as_game: bool, given: frozenset[str]) -> ExamSet:
    eval_set = EvalSet(**{name: getattr(suite, name) for name in EvalSet.model_fields})
    cfg = cfg.model_copy(update={"evaluate": _evaluate(cfg, eval_set)})
    game = game_of(cfg).exam_of(cfg)
    own = game if as_game and cfg.system in suite.games else None
    if own is not None and own.prompt_tokens is not None and suite.prompt_tokens and "prompt_tokens" not in given:
        suite = suite.model_copy(update={"prompt_tokens": max(suite.prompt_tokens, own.prompt_tokens)})
    return ExamSet.load(cfg, suite_exam(cfg, suite, own, game.role.agent.policy), eval_set, counts_questions=True)


def _tell_unjudged(cfg: Config, wanted: Sequence[SuiteCard], tell: Callable[[str], None]) -> None:
    """Says that the accuracy of documents is not the paper's without its judge (SPELL C.2)."""
    names = [suite.name for suite in wanted if suite.form == "document" and "accuracy" in suite.measures]
    if names and cfg.evaluate.judge is None:
        tell(
            f"{', '.join(names)}: without [evaluate.judge], accuracy is the rule's alone; SPELL's tables take the "
            "larger of it and a judge's verdict. For figures beside them add --set "
            """'evaluate.judge={url="…", model="…", max_tokens=4096}'."""
        )


def _with_limits(cfg: Config, suite: SuiteCard, overrides: Sequence[str], given: frozenset[str]) -> SuiteCard:
    """The suite with the sampling that --set gives, and at least as many tokens of an answer as the card allows: SPELL
    C.2 gives 4K to models that do not think, 20K to those that do, whose cards say so."""
    keys = {override.partition("=")[0].strip() for override in overrides}
    sampled = {"max_tokens", "temperature", "top_p", "top_k"} - given
    changes = {key: getattr(cfg.evaluate, key) for key in sampled if f"evaluate.{key}" in keys}
    if suite.max_tokens and cfg.evaluate.max_tokens and "max_tokens" in sampled - changes.keys():
        changes["max_tokens"] = max(suite.max_tokens, cfg.evaluate.max_tokens)
    return suite.model_copy(update=changes)


def _evaluate(cfg: Config, eval_set: EvalSet) -> EvalSection:
    """[evaluate] of the card with this one set; a reply may be as long as the set allows."""
    table = {name: getattr(cfg.evaluate, name) for name in EvalSection.model_fields}
    longest = max(cfg.evaluate.max_response_tokens, eval_set.max_tokens or 0)
    changes = {"sets": (eval_set,), "max_response_tokens": longest}
    return parse_section(EvalSection, table | changes, f"the exam {eval_set.name}")


def plain_card(checkpoint: str, overrides: Sequence[str] = (), positions: int | None = None) -> Config:
    """A card for a model that comes without one: it answers the prompts of suites, without a game and without searches.
    positions: of the model, if it is here; its episodes are no longer.

    It is SPICE's, whose exam needs nothing but the model; the training data it names are never opened.
    """
    table: dict[str, Any] = {
        "system": "spice",
        "model": {"checkpoint": checkpoint},
        "data": {"documents": "none"},
        "train": {"steps": 1},
    }
    if positions is not None:
        table["rollout"] = {"max_length": min(RolloutSection().max_length, positions)}
    return overridden(table, overrides, "the options of this command")


def suite_exam(cfg: Config, suite: SuiteCard, own: Exam | None, policy: str) -> Exam:
    """The exam of a suite for the policy `policy`.

    own: the exam of the card's game, if that game answers the suite with its own prompt, turns and searches.
    """
    if own is not None:
        ask = own.prompt
        if own.within is not None and suite.prompt_tokens is not None:
            ask = own.within(suite.prompt_tokens)
        return replace(
            own,
            prompt=lambda row, tokens: ask(row | {"question": question(row)}, tokens),
            kind=KINDS[suite.form],
        )
    accuracy, by_task = exams.document_accuracy(cfg) if suite.form == "document" else (ACCURACY[suite.form], {})
    return Exam(
        role=Role(suite.name, Agent(policy, SamplingSection(max_tokens=REPLY), stop=suite.stop)),
        prompt=lambda row, tokens: prompt(cfg, suite, row, tokens),
        read=lambda completion: read(suite, completion),
        measures=suite.measures,
        accuracy=accuracy,
        by_task=by_task,
        kind=KINDS[suite.form],
    )


def read(suite: SuiteCard, completion: Completion) -> str | None:
    """The answer in a reply up to a string of the suite's `stop`, without thinking; None if there is none, or if it may
    be the beginning of one."""
    text = completion.content
    return (READ_CUT if cut_off(completion) else READ)[suite.form](
        text[: min((place for place in map(text.find, suite.stop) if place >= 0), default=None)]
    )


def question(row: Row) -> str:
    """The question of a row, with its options under their letters if it has any and is no reading."""
    if "context" in row or not row.get("options"):
        return row["question"]
    return row["question"].rstrip() + "\n\n" + _listed(row["options"])


def _listed(options: list[str]) -> str:
    return "\n".join(f"({chr(ord('A') + place)}) {option}" for place, option in enumerate(options))


def prompt(cfg: Config, suite: SuiteCard, row: Row, tokens: Tokens) -> Messages:
    """The prompt of the suite's form for a row. Raises PromptError.

    A form "document" cuts the middle out of a text, so that the prompt has at most `prompt_tokens` tokens.
    """
    folder = cfg.evaluate.prompts_folder
    if suite.form != "document":
        asked = prompting.shown(cfg, question(row))
        return prompting.for_role(folder, suite.form, {"question": asked}, ("question",))
    asked = row["question"] if not row["options"] else f"{row['question'].rstrip()}\n\n{_listed(row['options'])}"

    def filled(text: str) -> Messages:
        values = {"documents": text, "question": prompting.shown(cfg, asked)}
        return prompting.for_role(folder, suite.form, values, ("documents", "question"))

    text = prompting.shown(cfg, row["context"])
    if suite.prompt_tokens is not None:
        text = without_middle(text, max(suite.prompt_tokens - tokens(filled("").text), 0), tokens)
    return filled(text)
