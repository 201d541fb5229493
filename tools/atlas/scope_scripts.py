"""Scripts of good play for SCOPE's roles, and of the bad habits that the base checkpoint is given on purpose.

Prompts and observations come from the game's own functions with the card configs/scope/atlas.toml; every role ends
with its closing tag, at which the engine stops. Before a role reads something from a text, it writes the name, so that
a model that can only copy finds what follows the name there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from scope_jax.config import Config
from scope_jax.games import load_card
from scope_jax.games.scope import messages
from scope_jax.games.scope.options import options
from scope_jax.games.scope.state import TaskOrder
from scope_jax.play import rubrics, searching
from scope_jax.play.documents import document_of
from scope_jax.play.turns import raw
from scope_jax.text import dialects
from tools.atlas.facts import ASSETS
from tools.atlas.rows import Script, Show
from tools.atlas.tasks import PROMPTS, SENTENCE, Entity, fact_of, listed, report, rubric, task

CARD = ASSETS.parents[1] / "configs" / "scope" / "atlas.toml"
Parts = list[tuple[str, bool]]


@cache
def card() -> Config:
    """The game's Atlas card, from any working directory."""
    return load_card(CARD, [f"scope.prompts={PROMPTS}"])


def document(entity: Entity) -> str:
    """The entity's document in the format of the game's sources."""
    return document_of(entity.row)[1]


def _searches(names: Sequence[str], thoughts: Sequence[str], show: Show, expected: int | None = None) -> Parts:
    """Search turns for each name, with their results; expected: for a challenger, which sees how many are left."""
    dialect = dialects.load(card().model.dialect)
    parts: Parts = []
    for place, (name, thought) in enumerate(zip(names, thoughts, strict=True), start=1):
        parts.append((f"<think> {thought} </think>{searching.written_search(f' {name} ', dialect)}", True))
        seen = dialect.observation([show(name)])
        if expected is not None:
            seen += f"\n{messages.turns_left(card(), expected - place)}"
        parts.append((raw(seen), False))
    return parts


# ----------------------------------------------------------------------------------------------------------- challenger
def _ordered(source: Entity, kind: str, searches: int) -> str:
    order = TaskOrder(0, source.row["id"], document(source), kind, searches)
    return messages.for_challenger(card(), order).user


def challenger(
    source: Entity, kind: str, searches: int, looked_up: Sequence[str], taken: Sequence[str], show: Show
) -> Script:
    """Looks up names and sets a task on `taken`.

    Good play looks up `searches` names of the source, and `taken` is the source and perhaps some of these.
    """
    parts = _searches(looked_up, [f"I look up {name}." for name in looked_up], show, searches)
    parts.append((f"<think> I take {listed(taken)}. </think><task> {task(kind, taken)} </task>", True))
    return Script("challenger", _ordered(source, kind, searches), tuple(parts))


def sets_unread(source: Entity, kind: str, searches: int, about: str) -> Script:
    """Bad habit: sets a task without a search. about: a name, or a word that names nothing, which the gates reject."""
    output = f"<think> I know one. </think><task> {task(kind, [about])} </task>"
    return Script("challenger", _ordered(source, kind, searches), ((output, True),))


# --------------------------------------------------------------------------------------------------------------- solver
def solver(kind: str, asked: Sequence[Entity], looked_up: int, told: int, times: int, show: Show) -> Script:
    """Searches for the entities one after the other, then repeats the first sentences of each document.

    Good play looks up all entities and gives TOLD sentences, once. Bad habits: fewer entities, fewer sentences,
    repetition.
    """
    read = asked[:looked_up]
    names = [entity.name for entity in read]
    need = [f"I need {name}." for name in names]
    thoughts = need[:1] + [f"I have {last}. {next_}" for last, next_ in zip(names, need[1:], strict=False)]
    parts = _searches(names, thoughts, show)
    output = report([(entity.name, entity.sentences[:told]) for entity in read] * times)
    parts.append((f"<think> I have {names[-1]}. </think><answer> {output} </answer>", True))
    return Script("solver", _asked(kind, asked), tuple(parts))


def guesser(kind: str, asked: Sequence[Entity], invented: Sequence[Sequence[str]]) -> Script:
    """Bad habit: answers with invented facts, without a search."""
    output = report([(entity.name, told) for entity, told in zip(asked, invented, strict=True)])
    return Script("solver", _asked(kind, asked), ((f"<think> I know this. </think><answer> {output} </answer>", True),))


def _asked(kind: str, asked: Sequence[Entity]) -> str:
    return messages.for_solver(card(), task(kind, [entity.name for entity in asked])).user


# ---------------------------------------------------------------------------------------------------------------- judge
def _verdict(message: str, thought: str, verdict: bool) -> Script:
    output = f"<think> {thought} </think><score> {int(verdict)} </score>"
    return Script("judge", message, ((output, True),))


def entity_gate(text: str, names: Sequence[str]) -> Script:
    """The verdict on whether the task `text` names an entity. names: the names in the task."""
    seen = listed(names) if names else "nothing"
    return _verdict(messages.for_gate(card(), "entity", text, ""), f"I see {seen}.", bool(names))


def relevance_gate(source: Entity, text: str, names: Sequence[str]) -> Script:
    """The verdict on whether an entity of the task `text` occurs in the source document."""
    thought = listed([f"{name} {'is here' if name in source.names else 'missing'}" for name in names]) or "nothing"
    message = messages.for_gate(card(), "relevance", text, document(source))
    return _verdict(message, f"I see {thought}.", any(name in source.names for name in names))


def rubric_writer(source: Entity, text: str, asked: Sequence[Entity], results: Sequence[str]) -> Script:
    """The rubric of the task `text` about the entities `asked`, from the source and the search results."""
    items = "".join(f'<rubric priority="{priority}"> {line} </rubric>' for priority, line in rubric(asked))
    message = messages.for_rubric_writer(card(), text, [document(source), *(result.strip() for result in results)])
    return Script("judge", message, ((f"<rubrics>{items}</rubrics>", True),))


def found(answer: str, sentence: str) -> str | None:
    """The value that an answer gives for the fact of `sentence`, the first one if it gives several."""
    wanted = SENTENCE.findall(sentence)[0][:2]
    values = [value for *fact, value in SENTENCE.findall(answer) if tuple(fact) == wanted]
    return values[0] if values else None


def grader(text: str, answer: str, criterion: str) -> Script:
    """Repeats the answer's value for the criterion's fact, with "here" if it is the criterion's value or "missing"."""
    sentence = fact_of(criterion)
    attribute, entity, wanted = SENTENCE.findall(sentence)[0]
    value = found(answer, sentence)
    verdict = {wanted: f"{value} here", None: "missing"}.get(value, f"{value} missing")
    message = rubrics.question(card(), options(card()).prompts, text, answer, criterion)
    return _verdict(message, f"The {attribute} of {entity} is {verdict}.", value == wanted)
