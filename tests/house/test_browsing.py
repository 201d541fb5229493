"""The episode browser: its data are complete, large runs are paged, nothing that an episode says runs as a script."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.evaluation import evaluations
from scope_jax.games import parse_config
from scope_jax.learner.types import Datum, Episode, Judgement, Reply
from scope_jax.play.game import REWARD
from scope_jax.report import browsing
from scope_jax.report.charts import FRAME, charts
from scope_jax.report.page import TEMPLATES, environment, inline, write_report
from scope_jax.run.files import read_records
from scope_jax.run.folder import RunFolder
from scope_jax.run.records import pieces

TABLE = {
    "system": "ssp",
    "model": {"checkpoint": "base"},
    "retrieval": {"corpus": "corpus.jsonl"},
    "data": {"answers": "answers.jsonl"},
    "train": {"steps": 3},
    "ssp": {"grader": "exact-match"},
}
ACT = "document.documentElement.dataset.owned='yes'"
HOSTILE = (
    f"</pre></script><script>{ACT}</script>",
    f'<img src=x onerror="{ACT}">',
    f"<svg/onload={ACT}>]]>-->",
    f'<a href="javascript:{ACT}">x</a>${{{ACT}}}`;{ACT};"\'\\u2028 \u2028',
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def hostile(number: int) -> Episode:
    """An episode that says something hostile wherever a model, a document or a judge may."""
    evil = HOSTILE[number % len(HOSTILE)]
    text = {
        "prompt": evil,
        "turns": [{"kind": "sampled", "text": evil}, {"kind": "observation", "text": evil}],
        "question": evil,
        "rejected": evil,
        evil: evil,
        "rubric": [{evil: evil}],
    }
    asked = (Judgement("grader", evil, (Reply(evil), Reply("", evil)), evil),)
    datum = Datum(np.array([7, 8, 9]), np.array([False, True, True]), np.array([0, -0.1234, -3], np.float32))
    parts = {"format": 1.0, evil: 0.5}
    return Episode("solver", "actor", evil, (datum,), 0.5, parts, 1.0, text=text, judgements=asked)


def spell(id: int) -> bytes:
    return HOSTILE[id % len(HOSTILE)].encode("utf-8", "replace")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "<b>run"
    log = RunFolder(folder, parse_config(TABLE, "test card"))
    log.token_bytes = spell
    for step in (1, 2):
        log.episodes(step, [hostile(number) for number in range(4)])
        log.metrics(step, {"solver/reward": 0.5})
    return folder


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def plain(count: int, words: int = 1) -> list[dict[str, Any]]:
    """Records as `joined` gives them."""
    return [
        {
            "step": number // 2,
            "role": ("asker", "solver")[number % 2],
            "group": f"g{number // 2}",
            "reward": None if number == 3 else 1 / (number + 1),
            "advantage": None,
            "trained": number != 1,
            "sampled": 5,
            "tokens": 9,
            "parts": {},
            "text": {"number": number, "rejected": "too long" if number == 4 else "", "words": "w" * words},
            "judgements": [],
            "rows": [],
        }
        for number in range(count)
    ]


def test_index_and_chunks_hold_every_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "CHUNK", 500)
    episodes = browsing.Episodes(tmp_path, "s")
    assert list(episodes.collect(plain(7))) == plain(7)
    index, chunks = unpacked(episodes.index()), [unpacked(chunk) for chunk in episodes.chunks]
    assert len(chunks) > 1 and index["starts"] == [sum(map(len, chunks[:k])) for k in range(len(chunks))]
    assert [episode["text"]["number"] for chunk in chunks for episode in chunk] == [*range(7)]
    assert index["roles"] == ["asker", "solver"] and index["role"] == [0, 1, 0, 1, 0, 1, 0]
    assert index["step"] == [0, 0, 1, 1, 2, 2, 3] and index["trained"] == [1, 0, 1, 1, 1, 1, 1]
    assert index["reward"] == [1.0, 0.5, 0.3333, None, 0.2, 0.1667, 0.1429]
    assert [index["reasons"][code] for code in index["reason"]] == ["", "", "", "", "too long", "", ""]
    assert set(chunks[0][0]) == {"text", "parts", "sampled", "all"}  # nothing for judges and tokens that are not there


def test_chunks_of_a_large_run_are_files_of_its_newest_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "CHUNK", 100)
    monkeypatch.setattr(browsing, "MOST_INSIDE", 500)
    for stamp in ("1", "2"):
        episodes = browsing.Episodes(tmp_path, stamp)
        list(episodes.collect(plain(9, words=100)))
        assert episodes.in_files and not episodes.chunks
    (tmp_path / "episodes" / "1-9.js").write_text("play();\n")  # of the site in whose folder the report is
    episodes.remove_old()
    files = {path.name: path.read_text() for path in (tmp_path / "episodes").iterdir()}
    assert files.pop("1-9.js") == "play();\n"
    assert set(files) == {f"2-{number}.js" for number in range(9)}
    for number in range(9):
        said = re.fullmatch(r'deliver\((\d), "([A-Za-z0-9+/=]+)"\);\n', files[f"2-{number}.js"])
        assert said is not None and int(said[1]) == number
        assert [episode["text"]["number"] for episode in unpacked(said[2])] == [number]


def test_judgements_and_tokens_join_their_episodes(tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", parse_config(TABLE, "test card"))
    log.token_bytes = lambda id: b"ab"[:id]
    quiet = Episode("solver", "actor", "g", (), 0.0, text={})
    for step in (1, 2, 3):
        log.episodes(step, [quiet, hostile(step), quiet, hostile(0)][: 2 * step])
    log.rewind(2)
    found = list(browsing.joined(tmp_path / "run", read_records(tmp_path / "run" / "episodes.jsonl")))
    assert [(e["step"], e["place"], len(e["judgements"]), len(e["rows"])) for e in found] == [
        (1, 0, 0, 0), (1, 1, 1, 1), (2, 0, 0, 0), (2, 1, 1, 1), (2, 2, 0, 0), (2, 3, 1, 1),
    ]  # fmt: skip
    assert found[1]["rows"] == [{"pieces": ["ab", "ab"], "logprobs": [-0.12, -3.0]}]
    datum = replace(hostile(0).datums[0], entropies_T=np.array([0, 0.456, 1.25], np.float32))
    log.episodes(4, [replace(quiet, datums=(datum,))])
    *_, last = browsing.joined(tmp_path / "run", read_records(tmp_path / "run" / "episodes.jsonl"))
    assert last["rows"] == [{"pieces": ["ab", "ab"], "logprobs": [-0.12, -3.0], "entropies": [0.46, 1.25]}]
    assert found[3]["judgements"][0]["replies"][0]["text"] == HOSTILE[2]


def answer(question: str, sample: int, accuracy: float) -> dict[str, Any]:
    said = [{"kind": "sampled", "text": f"<answer>{question}</answer>"}]
    own = {"question": question, "prediction": question, "measures": {"accuracy": accuracy}, "counts": {}}
    return own | {"text": {"prompt": "Answer.", "turns": said}, "sample": sample}


def test_answers_to_exams_are_in_the_browser_and_their_means_on_the_page(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evaluated"
    shutil.copytree(run, folder)
    metrics = {"eval/nq/accuracy": 0.25, "eval/nq/accuracy_se": 0.125}
    old = [answer("old", 0, 0.0)]
    new = [answer(HOSTILE[0], 0, 1.0), answer(HOSTILE[0], 1, 0.0), answer("b", 0, 0.0), answer("b", 1, 0.0)]
    for rows in (old, new):  # the newer answers count
        evaluations.keep(folder, 2, "nq", rows, metrics)
    evaluations.keep(folder, 1, "nq", old, metrics)
    evaluations.keep(None, 3, "nq", old, metrics)
    evaluations.keep(folder, None, "nq", old, metrics)
    heads, answers = browsing.answered(folder)
    assert [(head["step"], head["metrics"]) for head in heads] == [
        (2, {"accuracy": 0.25, "accuracy_se": 0.125}),
        (1, {"accuracy": 0.25, "accuracy_se": 0.125}),
    ]
    found = [(one["step"], one["role"], one["group"], one["reward"], one["text"]["question"]) for one in answers]
    assert found == [
        (2, "exam nq", "0", 1.0, HOSTILE[0]), (2, "exam nq", "0", 0.0, HOSTILE[0]),
        (2, "exam nq", "1", 0.0, "b"), (2, "exam nq", "1", 0.0, "b"), (1, "exam nq", "0", 0.0, "old"),
    ]  # fmt: skip
    text = write_report(folder).read_text(encoding="utf-8")
    index = unpacked(re.findall(r'id="episodes">([A-Za-z0-9+/=]+)<', text)[0])
    assert "exam nq" in index["roles"] and len(index["step"]) == 8 + 5 and index["reward"][-5:] == [1, 0, 0, 0, 0]
    assert "the 5 answers to exams" in text and '0.25 <span class="faint">± 0.12</span>' in text
    assert "<h2>Exams of checkpoints</h2>" not in write_report(run).read_text(encoding="utf-8")


def test_a_character_of_several_tokens_belongs_to_the_last_one() -> None:
    encoded = "né€".encode()
    assert pieces([encoded[:2], encoded[2:4], encoded[4:], b"!"]) == ["n", "é", "€", "!"]
    assert pieces([b"a", b"\xff", b"b\xe2"]) == ["a", "\ufffd", "b\ufffd"]
    assert pieces([]) == []


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if tag == "script" and data.strip():
            self.scripts.append((attributes.get("type"), data))


def in_a_browser(address: str, profile: Path) -> str:
    """The page at the address as it is once its scripts have run."""
    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=5000 --dump-dom"
    command = [str(CHROMIUM), *flags.split(), f"--user-data-dir={profile}", address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_pointer_on_a_chart_shows_the_values_of_its_step(tmp_path: Path) -> None:
    """Of the nearest step, here the second of four; a curve without a value there has none."""
    lines = [{"step": step, "a/reward": step / 8, "b/reward": 0.5 if step != 2 else None} for step in (1, 2, 3, 4)]
    figures = environment().from_string('{% from "charts.html" import figures %}{{ figures(charts) }}')
    move = f"""const drawing = document.querySelector("figure > svg"), box = drawing.getBoundingClientRect();
    const clientX = box.left + box.width * {(FRAME.left + 0.47 * (FRAME.right - FRAME.left)) / FRAME.width};
    drawing.dispatchEvent(new PointerEvent("pointermove", {{ clientX }}));"""
    for moved, expected in (("", ["latest step", "0.5", "0.5"]), (move, ["step 2", "0.25", "–"])):
        page = tmp_path / "page.html"
        charts_of_two = figures.render(charts=charts(lines, [REWARD], {"a": 0, "b": 1}))
        scripts = f"<script>{inline('charts.js')}</script><script>{moved}</script>"
        page.write_text(f'<!doctype html><meta charset="utf-8">{charts_of_two}{scripts}', encoding="utf-8")
        dom = in_a_browser(page.as_uri(), tmp_path / "profile")
        assert re.findall(r"<output[^>]*>([^<]*)</output>", dom) == expected
        assert ('class="cursor" d="M263,8V184"' in dom) == bool(moved)


def test_a_page_has_one_script_which_is_ours_and_no_markup_of_an_episode(run: Path) -> None:
    text = write_report(run).read_text(encoding="utf-8")
    page = Page(text)
    (ours,) = [script for kind, script in page.scripts if kind is None]
    assert ours == "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("charts.js", "browser.js"))
    assert all(re.fullmatch(r"[A-Za-z0-9+/=]+", data) for kind, data in page.scripts if kind is not None)
    assert not [tag for tag, _ in page.elements if tag in ("a", "img")]
    names = {name for _, attributes in page.elements for name in attributes}
    assert not [name for name in names if name.startswith("on")] and "href" not in names and "style" not in names
    policy = next(a["content"] or "" for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(ours.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ") and f"'sha256-{digest}'" in policy and "unsafe" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(", ours)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize(
    "address", ["open=1", "group=0&colour=logprob", "open=2&colour=entropy", "open=3&colour=advantage&q=onerror"]
)
def test_hostile_episodes_are_shown_as_text_in_a_browser(run: Path, tmp_path: Path, address: str) -> None:
    page = write_report(run)
    dom = in_a_browser(f"{page.resolve().as_uri()}#{address}", tmp_path)
    shown = dom.split('id="browser"')[1].split("<h2>Examples</h2>")[0]
    assert 'id="shown"><p class="pages">' in shown and shown.count("&lt;script&gt;") + shown.count("&lt;img") > 3
    assert ("8 episodes of 8" in shown) != ("q=" in address) and "data-owned" not in dom
    tags = {tag for tag, _ in Page(shown).elements}
    assert "article" in tags and not tags & {"img", "svg", "script", "style", "iframe"}
    links = [attributes["href"] or "" for tag, attributes in Page(shown).elements if tag == "a"]
    assert links and all(link.startswith("#") for link in links)
    if "q=" not in address:  # the newest step first
        rows = re.findall(r'<td class="n"><a href="#[^"]*open=(\d+)[^"]*">(\d+)</a>', shown)
        assert [(int(number), int(step)) for number, step in rows] == [
            (n, 2 - (n < 4)) for n in (4, 5, 6, 7, 0, 1, 2, 3)
        ]
