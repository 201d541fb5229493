"""Items whose samples follow each other, beside those of others: the same names, keys and samples as in phases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.play.chains import Waiting
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Rollout
from scope_jax.play.samples import Sample
from scope_jax.play.step import Step
from scope_jax.play.tool_calls import tool
from scope_jax.play.tools import Agent, Tools, single_turn
from scope_jax.rollouts.types import RolloutError
from scope_jax.run.world import StepTools
from scope_jax.text import dialects
from scope_jax.text.dialects import Call
from scope_jax.text.messages import Messages
from tests.train.test_requests import Asked, made_world
from tests.train.test_shares import Threads

ITEMS = "abcde"


def step_of(tools: Tools, *more: Role) -> Step[None]:
    """A step of a writer and a reader."""
    roles = [Role("writer", Agent("actor", single_turn(1.0, 40))), Role("reader", Agent("actor", single_turn(0.5, 40)))]
    cfg = load_card("ssp/atlas")
    return Step(cfg, None, {role.name: role for role in (*roles, *more)}, tools, {}, 0)


def replied(prompt: str, turns: tuple[Any, ...]) -> str:
    """The last character of the message, twice."""
    return "".join(filter(str.isprintable, prompt))[-1] * 2


def writing(item: str) -> Rollout:
    return Rollout(item, Messages(f"write {item}"))


def reading(item: str, texts: Sequence[str]) -> list[Rollout]:
    """Of as many texts as the item's place says, so that items differ."""
    count = ITEMS.index(item) % 3
    return [Rollout(f"{item}.{number}", Messages(text)) for number, text in enumerate(texts[:count])]


def chain(step: Step[None], item: str) -> Waiting[tuple[list[Sample], list[list[Sample]]]]:
    (written,) = yield from step.sample("writer", [writing(item)], samples=3)
    read = yield from step.sample("reader", reading(item, [one.text for one in written]), samples=2, key="again")
    return written, read


def phases(step: Step[None]) -> list[tuple[list[Sample], list[list[Sample]]]]:
    """What the chains do, in two calls of `play`."""
    written = step.play("writer", [writing(item) for item in ITEMS], samples=3)
    rollouts = {item: reading(item, [one.text for one in group]) for item, group in zip(ITEMS, written, strict=True)}
    flat = [rollout for each in rollouts.values() for rollout in each]
    read = iter(step.play("reader", flat, samples=2, key="again"))
    return [(group, [next(read) for _ in rollouts[item]]) for item, group in zip(ITEMS, written, strict=True)]


def plain(played: Any) -> Any:
    """Samples as data."""
    if isinstance(played, Sample):
        return [played.rollout, played.label, played.text, played.prompt, played.finish_reason, played.temperature]
    return [plain(each) for each in played]


def keys(engine: Asked) -> set[tuple[Any, ...]]:
    """Of all requests, with the prompt and the name of the row."""
    return {(*np.asarray(one.key).tolist(), *one.prompt_ids, one.name, one.params) for one in engine.asked}


def test_names_keys_and_samples_are_those_of_phases() -> None:
    found = []
    for played in (phases, lambda step: step.map(("writer", "reader"), chain, ITEMS)):
        engine, counted = Asked(replied, 999), []
        step = step_of(StepTools(made_world(engine, counted), 0))
        results = plain(played(step))
        samples = sorted(map(repr, plain(step.ledger.samples)))
        found.append((results, keys(engine), samples, len(counted)))
        assert len(engine.asked) == len(counted) == 15 + 2 * (1 + 2 + 1)
    assert found[0] == found[1]


def test_all_processes_get_all_results_and_each_item_is_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Asked(replied, 999)
    expected = plain(step_of(StepTools(made_world(alone, []), 0)).map(("writer", "reader"), chain, ITEMS))
    engine = Asked(replied, 999)
    tools = StepTools(made_world(engine, []), 0)
    found = Threads(monkeypatch).all(lambda: plain(step_of(tools).map(("writer", "reader"), chain, ITEMS)))
    assert found == [expected] * 3
    assert len(engine.asked) == 15 + 2 * (1 + 2 + 1), "no process repeats what another has played"
    assert keys(engine) == keys(alone)


def gathering(step: Step[None], item: str) -> Waiting[str]:
    """Of the first three items alone."""
    (((written,),)) = yield from step.sample("writer", [writing(item)])
    if item > "c":
        return written.text
    graded = yield from step.gather("grade", lambda cases: judged(step, cases), [written.text, item])
    ((read,),) = yield from step.sample("reader", [Rollout(item, Messages("".join(graded)))])
    return read.text


def judged(step: Step[None], cases: Sequence[str]) -> list[str]:
    """Something that all processes do together."""
    return step.tools.each("grade", lambda case: f"{case}{len(cases)}", cases)


@pytest.mark.parametrize("processes", [1, 3])
def test_what_all_items_need_together_is_done_once_for_all(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Asked(replied, 999)
    tools = StepTools(made_world(engine, []), 0)
    asked: list[Any] = []
    monkeypatch.setattr(StepTools, "each", lambda self, name, work, items: asked.append(items) or [*map(work, items)])

    def play() -> list[str]:
        return step_of(tools).map(("writer", "reader"), gathering, ITEMS)

    found = [play()] if processes == 1 else Threads(monkeypatch).all(play)
    assert found == [["66", "66", "66", "dd", "ee"]] * processes  # graded with six cases
    assert asked == [["aa", "a", "bb", "b", "cc", "c"]] * processes
    assert len(engine.asked) == 8


@pytest.mark.parametrize("where", ["at the start", "after its samples", "after what all need"])
def test_an_item_that_fails_ends_the_play_and_the_others(where: str) -> None:
    """As any error of a game's code does."""
    closed: list[str] = []

    def failing(step: Step[None], item: str) -> Waiting[None]:
        try:
            if item == "c" and where == "at the start":
                raise ZeroDivisionError(item)
            yield from step.sample("writer", [writing(item)])
            if item == "c" and where == "after its samples":
                raise ZeroDivisionError(item)
            yield from step.gather("all", list, [item])
            if item == "c":
                raise ZeroDivisionError(item)
            yield from step.sample("reader", [writing(item)])
        finally:
            closed.append(item)

    engine = Asked(replied, 999)
    with pytest.raises(ZeroDivisionError, match="c"):
        step_of(StepTools(made_world(engine, []), 0)).map(("writer", "reader"), failing, ITEMS)
    assert "c" in closed and not any(one.name[0] == "reader" and one.name[1] >= "c" for one in engine.asked)


def test_what_an_item_must_not_do() -> None:
    def step() -> Step[None]:
        return step_of(StepTools(made_world(Asked(replied, 999), []), 0))

    def alike(step: Step[None], item: str) -> Waiting[None]:
        yield from step.sample("writer", [Rollout("same", Messages(item))])

    with pytest.raises(UserError, match="two rollouts of role 'writer' have the name 'same'; give each its own"):
        step().map(("writer",), alike, ITEMS)

    def calling(step: Step[None], item: str) -> Waiting[None]:
        yield from step.sample("writer", [writing(item)])
        step.play("writer", [Messages("p")])

    with pytest.raises(RuntimeError, match=r"all processes must call together; use its Context .* or `step.gather`"):
        step().map(("writer",), calling, ITEMS)

    runs: list[str] = []

    def changing(step: Step[None], item: str) -> Waiting[None]:
        yield from step.sample("writer", [writing(item)])
        runs.append(item)
        if len(runs) == 1:
            yield from step.sample("writer", [writing(f"{item} again")])

    with pytest.raises(RolloutError, match="asked for other samples the second time; let it depend on its step"):
        step().map(("writer",), changing, "a")

    stranger = Role("stranger", Agent("other", single_turn(1.0, 4)))

    def asking(step: Step[None], item: str) -> Waiting[None]:
        yield from step.sample("stranger", [writing(item)])

    with pytest.raises(RolloutError, match=r"an item asks 'stranger', but only writer were named \(Step.map\)"):
        step_of(StepTools(made_world(Asked(replied, 999), []), 0), stranger).map(("writer",), asking, "a")


def test_a_resumed_step_gets_the_recorded_calls_of_items(tmp_path: Path) -> None:
    """Under the names that they have in phases, whatever was played before the process was killed."""
    numbers = iter(range(100))

    @tool
    def count(text: str) -> str:
        """Another number each time."""
        return f"number {next(numbers)}"

    call = dialects.load("xml").write(Call("count", {"text": "x"}), [count.schema])
    agent = Agent("actor", single_turn(1.0, 999), max_turns=2, tools=("count",), calls="stop")

    def chained(step: Step[None], item: str) -> Waiting[list[str]]:
        ((first,),) = yield from step.sample("caller", [writing(item)])
        ((second,),) = yield from step.sample("caller", [writing(f"{item} again")])
        return [one.text for sample in (first, second) for one in sample.calls]

    def inphases(step: Step[None]) -> list[list[str]]:
        first = step.play("caller", [writing(item) for item in ITEMS])
        second = step.play("caller", [writing(f"{item} again") for item in ITEMS])
        return [[one.calls[0].text, two.calls[0].text] for (one,), (two,) in zip(first, second, strict=True)]

    def played(items: str | None) -> list[list[str]]:
        world = made_world(Asked(lambda prompt, turns: call if not turns else "done", 9999), [], count=count)
        world.recording.open(tmp_path, 0)
        step = step_of(StepTools(world, 0), Role("caller", agent))
        results = inphases(step) if items is None else step.map(("caller",), chained, items)
        world.recording.close()
        return results

    before = played("abc")
    assert len({text for texts in before for text in texts}) == 6
    resumed = played(ITEMS)
    assert resumed[:3] == before and len({text for texts in resumed for text in texts}) == 10
    assert played(None) == resumed, "phases find the same record"
