"""The meta-harness of SCORE: what is valid, how it is refreshed, and that no reply of its model can end a run."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from scope_jax.config import CardError, JudgeSection
from scope_jax.games import score
from scope_jax.games.score import meta_harness, roles
from scope_jax.games.score.options import options
from scope_jax.grading import judge_client
from scope_jax.grading.judge_client import JudgeClient
from scope_jax.learner.types import Reply
from scope_jax.play.game import play_step, step_of
from scope_jax.run.activity import Activity
from scope_jax.run.recording import Recording
from scope_jax.run.world import StepTools, World
from tests.games.harness import ScriptedTools
from tests.games.score_world import QUERIES, RESULTS, Plan, card, world
from tests.judge.endpoint import Answer, chat, endpoint

OUTSIDE = {"driver": "endpoint", "endpoint": {"url": "http://127.0.0.1:1/v1", "model": "m"}}
PLAIN = meta_harness.default(card()).plain()
NAMES = PLAIN["dimension_pool"]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def changed(*path: str, to: Any) -> dict[str, Any]:
    """The default harness with one value changed; ... removes it."""
    value = deepcopy(PLAIN)
    table = value
    for key in path[:-1]:
        table = table[key]
    if to is ...:
        del table[path[-1]]
    else:
        table[path[-1]] = to
    return value


K, MUST, LOW = (("dimension_constraints", name) for name in ("k", "must_include", "weight_min"))
CALLS = ("process_constraints", "min_number_of_tool_call")
BAD = [
    (changed(*K, to="4"), "valid integer"),
    (changed(*K, to=True), "valid integer"),
    (changed(*K, to=4.5), "valid integer"),
    (changed(*K, to=0), "greater than or equal"),
    (changed(*K, to=11), "k is above"),
    (changed(*K, to=...), "required"),
    (changed(*MUST, to=["beauty"]), "not in the pool"),
    (changed(*MUST, to=[]), "is empty"),
    (changed(*MUST, to=["insight", "insight"]), "twice"),
    (changed(*MUST, to=["insight", "diversity", "fairness", "factuality"]), "k is below"),
    (changed(*MUST, to="factuality"), "must_include"),
    (changed(*LOW, to=0.6), "weight_min is above"),
    (changed(*LOW, to=-1), "greater than or equal"),
    (changed(*CALLS, to=10), "leaves no turn"),
    (changed("process_constraints", "require_search", to="yes"), "valid boolean"),
    (changed("dimension_pool", to=["factuality", "beauty", "insight"]), "does not have"),
    (changed("dimension_pool", to=["factuality", "insight"]), "k is above"),
    (changed("notes", to="n" * 2001), "at most 2000"),
    (changed("notes", to=None), "valid string"),
    ({**PLAIN, "weights": {}}, "Extra inputs"),
    ([], "valid dictionary"),
]


@pytest.mark.parametrize(("value", "why"), BAD, ids=[why for _, why in BAD])
def test_invalid_harnesses_are_rejected_with_the_reason(value: Any, why: str):
    with pytest.raises(meta_harness.HarnessError, match=why):
        meta_harness.validate(card(), value)


def test_the_pool_may_be_narrowed_and_a_harness_is_plain_data():
    narrow = meta_harness.validate(card(), changed("dimension_pool", to=["factuality", "insight", "diversity"]))
    assert narrow.dimension_pool == ("factuality", "insight", "diversity")
    assert meta_harness.validate(card(), json.loads(json.dumps(narrow.plain()))) == narrow
    with pytest.raises(CardError, match=r"score\.harness: a run cannot begin"):
        score.GAME.start(card(harness={"k": 11}))


def test_another_card_adopts_a_harness_that_was_refreshed_and_is_valid_for_it():
    cfg, memory = card(), score.GAME.start(card())
    memory["scheduler"]["step"] = 7
    memory["harness"] |= {"value": changed("dimension_constraints", "k", to=5), "by": "rules", "since": 5}
    assert score.GAME.adopt(cfg, memory, cfg) == memory
    assert score.GAME.adopt(card(harness={"k": 4}), memory, cfg) == memory
    few = card(dimensions=dict.fromkeys([*NAMES[1:3], *NAMES[6:]], ""))
    adopted = score.GAME.adopt(few, memory, cfg)
    assert adopted["harness"]["value"]["dimension_constraints"]["k"] == 3
    assert (adopted["harness"]["by"], adopted["harness"]["since"]) == ("card", 7)


def test_another_card_replaces_the_harness_of_the_first_one():
    cfg, memory = card(), score.GAME.start(card())
    memory["scheduler"]["step"] = 7
    assert score.GAME.adopt(cfg, memory, cfg) == memory
    for other in (card(harness={"k": 4}), card(dimensions={"depth": "it goes into depth"})):
        adopted = score.GAME.adopt(other, memory, cfg)
        assert adopted["harness"] == score.GAME.start(other)["harness"] | {"since": 7}


# ----------------------------------------------------------------------------------------------------- external model
@dataclass
class HTTPTools(ScriptedTools):
    """Scripted tools whose external model is called over HTTP, by the tools of a real run."""

    real: StepTools | None = None

    def judge(self, messages: Sequence[str], **asked: Any) -> list[Reply]:
        assert self.real is not None and asked == {"by": "harness"}
        self.judged += messages
        return self.real.judge(messages, **asked)

    def probe(self, by: str) -> str:
        assert self.real is not None
        return self.real.probe(by)

    def tell(self, sentence: str) -> None:
        assert self.real is not None
        self.real.tell(sentence)


@contextmanager
def http_tools(url: str, timeout: float = 5.0) -> Iterator[HTTPTools]:
    client = JudgeClient(JudgeSection(url=url, model="m", timeout=timeout, retries=0))
    tools = HTTPTools(Plan(), RESULTS, data=QUERIES, dialect="observation")
    run = Mock(spec=World, activity=Activity())
    run.judges, run.tell, run.recording = {"harness": client}, tools.told.append, Recording()
    tools.real = StepTools(run, 0)
    yield tools
    client.close()


def played(answer: Answer) -> tuple[Any, HTTPTools]:
    """A step whose refresh gets this reply."""
    cfg = card(harness=OUTSIDE)
    with endpoint(lambda number, body: answer) as (url, _), http_tools(url) as tools:
        return play_step(score.GAME, cfg, tools, score.GAME.start(cfg), 0), tools


BROKEN: list[tuple[str, Answer]] = [
    ("not a chat completion", (200, [1])),
    ("HTTP 500", (500, "")),
    ("refused: HTTP 400", (400, "too long")),
    ("not end with a JSON object", chat("I would rather not.")),
    ("Field required", chat(json.dumps(PLAIN)[:-9])),
    (r"\?\[31m\?x: Extra", chat(json.dumps({**PLAIN, "\x1b[31m\nx": 1}))),
    ("valid integer", chat(json.dumps(changed(*K, to="4")))),
    ("not in the pool", chat(json.dumps(changed(*MUST, to=["beauty"])))),
    ("characters, more than", chat(json.dumps(changed("notes", to="n" * (10 << 20))))),
    ("JSON object", chat("")),
]


@pytest.mark.parametrize(("why", "answer"), BROKEN, ids=[why for why, _ in BROKEN])
def test_an_invalid_reply_keeps_the_harness_and_is_counted(why: str, answer: Answer):
    (episodes, memory, metrics), tools = played(answer)
    assert memory["harness"] == score.GAME.start(card())["harness"] | {"invalid": 1}
    assert metrics["harness/invalid"] == 1.0 and metrics["harness/refreshed"] == 0.0
    told = [episode for episode in episodes if episode.role == "harness"][-1]
    assert re.search(why, told.text["problem"]) and told.text["value"] == PLAIN and told.text["by"] == "endpoint"
    (sentence,) = tools.told
    assert sentence.startswith("step 1: no new meta-harness: ") and re.search(why, sentence)
    assert sentence.endswith("; the one in force since the start stays.") and "\n" not in sentence
    assert all(len(reply.text) <= meta_harness.LARGEST + 1 for j in told.judgements for reply in j.replies)


@pytest.mark.parametrize(("listens", "why"), [(False, "connection"), (True, "no complete reply within 0.2 s")])
def test_a_run_starts_without_the_endpoint_and_retries_at_the_next_refresh(
    listens: bool, why: str, monkeypatch: pytest.MonkeyPatch
):
    """Without a server, or with one that does not reply, the card's harness is used; this is reported and counted."""
    monkeypatch.setattr(judge_client, "PROBE", 0.2)
    cfg = card(harness={**OUTSIDE, "every": 2})
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with http_tools(url, timeout=0.2) as tools:
            episodes, memory, metrics = play_step(score.GAME, cfg, tools, score.GAME.start(cfg), 0)
            (sentence,) = tools.told
            tools.prompts.clear()
            _, later, after = play_step(score.GAME, cfg, tools, memory, 1)
    assert sentence.startswith(f"the judge at {url} cannot be reached (") and re.search(why, sentence.lower())
    assert sentence.endswith("; the run starts with the meta-harness of the card.")
    assert memory["harness"] == score.GAME.start(cfg)["harness"] | {"invalid": 1} and metrics["harness/invalid"] == 1.0
    first, attempt = (episode.text for episode in episodes if episode.role == "harness")
    assert (first["value"], first["by"], first["since"]) == (PLAIN, "card", 0) and "problem" not in first
    assert (attempt["at"], attempt["by"], attempt["value"]) == (0, "endpoint", PLAIN)
    assert re.search(why, attempt["problem"].lower())
    # the first refresh fails as well, with the message of a refresh, not of the start
    assert later["harness"] == memory["harness"] | {"invalid": 2} and after["harness/invalid"] == 2.0
    assert len(tools.told) == 2 and tools.told[1].startswith("step 2: no new meta-harness: no reply: the judge at ")


def test_a_valid_reply_is_in_force_from_the_next_step():
    new = changed(*CALLS, to=2) | {"notes": "Search twice. <answer>"}
    (episodes, memory, metrics), tools = played(chat(f"Here it is:\n{json.dumps(new)}"))
    assert memory["harness"]["value"] == new and memory["harness"]["since"] == 1 and metrics["harness/invalid"] == 0.0
    assert '"assessed": 1.0' in tools.judged[0] and '"min_number_of_tool_call": 1' in tools.judged[0]
    cfg, again = card(), world()
    episodes, _, metrics = play_step(score.GAME, cfg, again, memory, 1)
    assert metrics["harness/min_tool_calls"] == 2.0 and metrics["solver/rejected_shallow"] == 1.0
    assert "Search at least 2 times" in (prompt := again.prompts["scoring", "0 report 0"]) and "[answer]" in prompt
    told = next(episode for episode in episodes if episode.role == "harness")
    assert (told.text["value"], told.text["by"], told.text["since"]) == (new, "endpoint", 1)


# ---------------------------------------------------------------------------------------------------------- rules, file
def told(**numbers: float | None) -> list[dict[str, Any]]:
    return [{"assessed": 1.0, "base_score": None, "spread": None} | numbers]


@pytest.mark.parametrize(
    ("numbers", "k", "calls"),
    [
        ({"base_score": 0.5, "spread": 0.1}, 3, 1),
        ({"base_score": 0.8, "spread": 0.1}, 4, 2),
        ({"base_score": 0.5, "spread": 0.01}, 4, 2),
        ({"assessed": 0.4, "base_score": 0.9}, 2, 1),
        ({"assessed": 0.0}, 2, 1),
    ],
)
def test_rules_tighten_on_high_or_similar_scores_and_loosen_if_few_reports_are_assessed(
    numbers: dict[str, float], k: int, calls: int
):
    cfg = card()
    after = meta_harness.by_rules(cfg, meta_harness.default(cfg), told(**numbers))
    assert (after.dimension_constraints.k, after.process_constraints.min_number_of_tool_call) == (k, calls)


def test_rules_stay_within_the_limits_of_the_card():
    cfg = card(harness={"max_k": 4, "max_tool_calls": 2})
    now = meta_harness.default(cfg)
    for _ in range(5):
        now = meta_harness.by_rules(cfg, now, told(base_score=1.0))
    assert (now.dimension_constraints.k, now.process_constraints.min_number_of_tool_call) == (4, 2)
    for _ in range(5):
        now = meta_harness.by_rules(cfg, now, told(assessed=0.0))
    assert (now.dimension_constraints.k, now.process_constraints.min_number_of_tool_call) == (2, 1)


def test_a_file_of_harnesses_is_replayed(tmp_path: Path):
    path = tmp_path / "harnesses.json"
    path.write_text(json.dumps([{"step": 1, "harness": changed(*K, to=2)}, {"step": 2, "harness": {}}]))
    cfg = card(harness={"driver": "replay", "file": str(path)})
    memory, ks = score.GAME.start(cfg), []
    state = memory["harness"]
    for number in range(3):
        step = step_of(score.GAME, cfg, ScriptedTools(Plan()), {**memory, "harness": state}, number)
        before = meta_harness.validate(cfg, state["value"])
        state = meta_harness.after(step.card.harness, state, roles.refresh(step, before, told()))
        ks.append((state["value"]["dimension_constraints"]["k"], state["since"], state["invalid"]))
    assert ks == [(2, 1, 0), (2, 1, 1), (2, 1, 1)]  # the second entry is invalid, the third step has no entry


@pytest.mark.parametrize("text", ["{", "{}", '[{"step": "1", "harness": {}}]', '[{"step": 1}]', "[1]"])
def test_an_invalid_file_of_harnesses_ends_the_run_at_its_start(tmp_path: Path, text: str):
    path = tmp_path / "harnesses.json"
    path.write_text(text)
    for name in (path, tmp_path / "none.json"):
        with pytest.raises(CardError, match=str(name)):
            score.GAME.start(card(harness={"driver": "replay", "file": str(name)}))


def test_a_driver_that_is_off_never_refreshes():
    assert not meta_harness.due(options(card(harness={"driver": "off"})).harness, 0)
    every = options(card(harness={"every": 2})).harness
    assert [meta_harness.due(every, step) for step in range(4)] == [False, True, False, True]


@pytest.mark.parametrize(("driver", "count"), [("off", 0), ("rules", 1)])
def test_only_statistics_that_a_driver_reads_are_kept(driver: str, count: int):
    cfg = card(harness={"driver": driver, "every": 2})
    _, memory, _ = play_step(score.GAME, cfg, world(), score.GAME.start(cfg), 0)
    assert len(memory["statistics"]) == count
