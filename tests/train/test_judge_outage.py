"""SCOPE with an endpoint for every judge, which goes down while it grades: the run waits, and nothing is lost."""

from __future__ import annotations

import json
import time
import zlib
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scope_jax.models.files.seal import fault
from tests.judge.endpoint import Answer, chat, endpoint, refused
from tests.train import runs

pytestmark = pytest.mark.slow

OUTAGE = 30.0  # seconds
SMALL = (*runs.SCOPE, "scope.iterations=1", "scope.max_batches=1")
RUBRIC = "".join(f'<rubric priority="important">Tells {what}.</rubric>' for what in ("who", "where", "when"))


class Uninterrupted(NamedTuple):
    """A run whose judge was always up, and the requests that the judge got."""

    run: Path
    asked: list[dict[str, Any]]

    @property
    def middle_request(self) -> int:
        """Number of requests after which a quarter of the longest row of gradings has been sent.

        Two steps may grade one after the other, and half of the row would be the border between them.
        """
        place, sizes = 0, []
        for job, batch in groupby(self.asked, key=lambda request: request["model"]):
            size = len(list(batch))
            sizes.append((size if job == "grader" else 0, place + size // 4))
            place += size
        return max(sizes)[1]


def reply(number: int, body: dict[str, Any]) -> Answer:
    """The reply of each judge, a function of the message; half of the answers meet a criterion."""
    if body["model"] == "rubric_writer":
        return chat(f"<think>Three will do.</think><rubrics>{RUBRIC}</rubrics>")
    odd = zlib.crc32(body["messages"][0]["content"].encode()) % 2
    return chat(f"<score>{1 if body['model'] == 'gates' else odd}</score>")


def command(run: Path, url: str, *more: str) -> list[str]:
    tables = [
        f'scope.{job}.endpoint={{url="{url}", model="{job}", concurrency=2}}'
        for job in ("gates", "rubric_writer", "grader")
    ]
    return runs.command("scope/atlas.toml", run, (*SMALL, *tables, *more))


def messages(requests: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(request) for request in requests)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    with endpoint(reply) as (url, seen):
        runs.finish(command(run, url))
    return Uninterrupted(run, seen)


def port(url: str) -> int:
    return int(url.split(":")[2].split("/")[0])


def test_a_run_waits_for_a_judge_that_is_down_for_30_seconds(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with endpoint(reply, last=uninterrupted.middle_request) as (url, seen):
        process = runs.start(command(run, url))
        runs.wait_for(process, lambda: len(seen) >= uninterrupted.middle_request)
    with refused(port(url)):
        before = runs.lines(run, "metrics.jsonl")
        time.sleep(OUTAGE)
        assert process.poll() is None, process.communicate()[0]
        assert runs.lines(run, "metrics.jsonl") == before  # it waits inside the step
    with endpoint(reply, port=port(url)) as (_, later):
        runs.end(process)
    assert seen[-1]["model"] == later[0]["model"] == "grader"
    assert messages(seen + later) == messages(uninterrupted.asked)
    runs.same(uninterrupted.run, run)
    graded = [e["text"]["verdicts"] for e in runs.lines(run, "episodes.jsonl") if e["role"] == "solver"]
    given = {verdict for verdicts in graded for verdict in verdicts}
    assert given == {True, False}  # and never None


def test_a_judge_that_stays_down_stops_the_run_which_can_be_resumed(
    uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    run, hasty = tmp_path / "run", [f"scope.{job}.endpoint.retries=1" for job in ("gates", "rubric_writer", "grader")]
    with endpoint(reply, last=uninterrupted.middle_request) as (url, _):
        said = runs.end(runs.start(command(run, url, *hasty)), 2)
    sentence = said.splitlines()[-1]
    assert sentence.startswith(f"scope-jax: the judge at {url} did not answer after 2 tries (") and sentence[-1] == "."
    assert "Traceback" not in said
    step = runs.saved(run)[-1]
    assert fault(run / "checkpoints" / str(step)) is None
    assert runs.lines(run, "metrics.jsonl")[-1]["step"] == runs.lines(run, "episodes.jsonl")[-1]["step"] == step
    with endpoint(reply, port=port(url)):
        runs.finish(command(run, url, *hasty))
    runs.same(uninterrupted.run, run)
