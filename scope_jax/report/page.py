"""The report of a run: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scope_jax.config import Config
from scope_jax.files import replaced
from scope_jax.games import load_data
from scope_jax.play.collapse import REJECTED
from scope_jax.report import browsing
from scope_jax.report.charts import FRAME, Chart, charts, colours
from scope_jax.report.panels import (
    LEARNING,
    Panel,
    collapse_panels,
    depth_panels,
    never,
    once,
    panels_of,
    speed_panels,
    stale_panels,
    with_errors,
    words,
)
from scope_jax.report.settings import Settings
from scope_jax.report.timeline import timeline_of
from scope_jax.report.usage import usage
from scope_jax.run import signs as limits
from scope_jax.run.files import EPISODES, METRICS, read_records
from scope_jax.run.folder import missing
from scope_jax.run.signs import Signs
from scope_jax.run.watch import IdleRoles, watch_of

TEMPLATES = Path(__file__).with_name("templates")
EXAMPLES = 2  # episodes shown per role, for each of the first and the last step


def examples(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Episodes to show: for the first and the last step, each role's with the highest and the lowest reward.

    Ties go to the episode with more turns, since searches are worth reading, then to the earlier one.
    """
    first: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    for record in records:
        if last and record["step"] != last[0]["step"]:
            last = []
        last.append(record)
        if not first or record["step"] == first[0]["step"]:
            first.append(last[-1])
    chosen: list[dict[str, Any]] = []
    for step in (last, first) if last and last[0]["step"] != first[0]["step"] else (last,):
        for role in sorted({record["role"] for record in step}):
            readable = [record for record in step if record["role"] == role and record["text"].get("turns")]
            ranked = sorted(readable, key=lambda record: (-(record["reward"] or 0.0), -len(record["text"]["turns"])))
            if len(ranked) > EXAMPLES:  # the sort is stable
                ranked = [ranked[0], min(ranked[1:], key=lambda record: record["reward"] or 0.0)]
            chosen += ranked
    return chosen


def facts(cfg: Config) -> dict[str, Any]:
    """Key facts of the run; those without a value in the card are left out."""
    found = {
        "system": cfg.system,
        "model": cfg.model.checkpoint,
        "started from": cfg.train.origin,
        "corpus": None if cfg.retrieval is None else cfg.retrieval.corpus or cfg.retrieval.url,
        "answers": cfg.data.answers,
        "documents": cfg.data.documents,
        "clusters": cfg.data.clusters,
        "questions": cfg.data.questions,
        "queries": cfg.data.queries,
        "prompts": cfg.data.prompts,
        "seed": cfg.seed,
        "learning rate": cfg.optimizer.learning_rate,
        "compute dtype": cfg.model.compute_dtype,
    }
    return {key: value for key, value in found.items() if value is not None}


def _scores(panel: Panel, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """First and last score of each evaluation set, as (step, score, standard error or NaN)."""
    found = sorted(with_errors(lines, panel).items())
    return [
        {"set": name, "before": rows[0], "after": rows[-1]}
        for name, columns in found
        if (rows := list(zip(*columns, strict=True)))
    ]


def drawn(lines: Sequence[dict[str, Any]], panels: Sequence[Panel]) -> dict[str, list[Chart]]:
    """The charts of the page by section: those of `panels`, and those that all games have; no metric is in two."""
    sections: dict[str, Sequence[Panel]] = {
        "curves": panels,
        "learning": (*LEARNING, *depth_panels(lines), *stale_panels(lines)),
        "speed": speed_panels(lines),
        "collapse": collapse_panels(lines),
    }
    before: list[Panel] = []
    for name, own in sections.items():
        sections[name] = once(lines, own, before)
        before += own
    chosen = colours(lines, [panel for own in sections.values() for panel in own])
    return {name: charts(lines, own, chosen) for name, own in sections.items()}


def inline(name: str) -> Markup:
    """The text of a style sheet or script of `templates`, to be written into a page as it is."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def policy(*texts: str) -> str:
    """The Content Security Policy of a page with these inline scripts and style sheets, and with no others.

    No other script runs and nothing is loaded, wherever an episode's text should end up. 'strict-dynamic' lets the
    browser of episodes load their files; `connect-src` is for the server of a live page.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts)
    return (
        f"default-src 'none'; script-src {hashes} 'strict-dynamic'; style-src {hashes}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def environment() -> Environment:
    """Templates with all values escaped."""
    found = Environment(
        loader=PackageLoader("scope_jax.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"frame": FRAME}
    return found


def replace_page(path: Path, page: str) -> None:
    """Writes the page under a temporary name and renames it."""
    with replaced(path) as partial:
        partial.write_text(page, encoding="utf-8")


def write_report(run: Path, live: bool = False, to: Path | None = None) -> Path:
    """Writes index.html and its episodes in the folder `to`, or <run>/report; returns the page's path.

    live: the page loads itself again when its server has a new one. Raises FileNotFoundError for a folder that is not a
    run, or a run without a finished step.
    """
    cfg, lines = opened(run)
    panels = panels_of(run, cfg.system)
    folder, settings, idle = to or run / "report", Settings(), IdleRoles(lines)
    browser = browsing.Episodes(folder, browsing.stamp(run))
    whole = browsing.joined(run, read_records(run / EPISODES))
    chosen = examples(browser.collect(settings.collect(idle.collect(whole))))
    episodes, (evaluated, answers) = len(browser), browsing.answered(run)
    for _ in browser.collect(answers):
        pass
    sections, signs = drawn(lines, panels), list(Signs.after(lines))
    zero = [sign for sign in signs if never(lines, f"{sign.who}/{sign.name}")]
    style = inline("page.css")
    script = inline("charts.js") + (inline("browser.js") if browser else "")
    page = (
        environment()
        .get_template("run.html")
        .render(
            name=run.resolve().name,
            style=style,
            script=script,
            policy=policy(style, script),
            live=live,
            browser=browser,
            episodes=episodes,
            evaluated=evaluated,
            sections=sections,
            timeline=timeline_of(run),
            usage=usage(run, [line for line in lines if "time/play" in line]),
            signs=sorted((sign for sign in signs if sign not in zero), key=lambda sign: not sign.level),
            zero=[words(f"{sign.who}/{sign.name}".replace(REJECTED, "rejected, ")) for sign in zero],
            limits=limits,
            settings=settings.rows,
            steps=lines[-1]["step"],
            planned=cfg.train.steps,
            facts=facts(cfg),
            measure=panels[0].title,
            scores=_scores(panels[0], lines),
            last=lines[-1],
            told=[*missing(run), *filter(None, [watch_of(cfg, lines).reason]), *idle.sentences],
            examples=chosen,
            config=(run / "config.toml").read_text(encoding="utf-8"),
        )
    )
    path = folder / "index.html"
    replace_page(path, page)
    browser.remove_old()
    return path


def opened(run: Path) -> tuple[Config, list[dict[str, Any]]]:
    """The card and the metrics of a run; raises FileNotFoundError as `write_report` does."""
    if not (run / "config.toml").is_file():
        raise FileNotFoundError(
            f"{run} is not a run folder (no config.toml); give the folder passed to train as --run."
        )
    lines = list(read_records(run / METRICS))
    if not lines:
        raise FileNotFoundError(f"{run} has no metrics.jsonl with a finished step; give a run folder.")
    return load_data(run / "config.toml"), lines
