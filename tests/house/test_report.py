"""The plots and the HTML page of a run show the contents of its files."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from scope_jax.config import LossCard, OptimizerSection
from scope_jax.games import GAMES, load_card, parse_config
from scope_jax.learner.advantages import assign
from scope_jax.learner.state import learning_rate
from scope_jax.learner.types import Datum, Episode
from scope_jax.play import settings
from scope_jax.report.charts import (
    charts,
    smooth_errors,
)
from scope_jax.report.page import examples, facts, write_report
from scope_jax.report.panels import collapse_panels, depth_panels, series, with_errors
from scope_jax.report.progress import Progress
from scope_jax.report.settings import Settings, differences
from scope_jax.report.usage import PLAN, Usage, usage, used
from scope_jax.run import watch
from scope_jax.run.files import read_records, write_json
from scope_jax.run.folder import RunFolder

ROOT = Path(__file__).parents[2]
TABLE = {
    "system": "ssp",
    "model": {"checkpoint": "assets/base"},
    "retrieval": {"corpus": "assets/corpus.jsonl"},
    "data": {"answers": "assets/answers.jsonl"},
    "train": {"steps": 40, "batch_size": 8},
    "ssp": {"grader": "exact-match"},
}
TURNS = [
    {"kind": "sampled", "text": "<think>Which river?</think><search>river of <Aldmoor></search>"},
    {"kind": "observation", "text": "<information>Doc 1 (Title: Aldmoor)\nThe river Tarn flows past.</information>"},
    {"kind": "sampled", "text": "<answer>Tarn</answer>"},
]


def episode(role: str, reward: float, turns: int = 3) -> Episode:
    datum = Datum(np.arange(5), np.array([False, False, True, True, True]), np.zeros(5, np.float32))
    text = {"prompt": f"You are the {role}.", "turns": TURNS[:turns], "question": "Which river?", "rejected": ""}
    return Episode(role, "actor", "g", (datum,), reward, {"format": 1.0}, text=text)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "demo"
    log = RunFolder(folder, parse_config(TABLE, "test card"))
    rng = np.random.default_rng(0)
    log.metrics(0, {"eval/held-out/accuracy": 0.125, "eval/held-out/searches": 0.4})
    for step in range(1, 41):
        learned = 1 - np.exp(-step / 15)
        metrics = {
            "solver/reward": 0.2 + 0.5 * learned + rng.normal() * 0.06,
            "proposer/reward": 0.7 - 0.3 * learned + rng.normal() * 0.06,
            "proposer/valid": min(1.0, 0.4 + 0.5 * learned + rng.normal() * 0.05),
            "solver/searches": 0.6 + 0.5 * learned,
            "proposer/searches": 1.2 - 0.2 * learned,
            "solver/loss": float("nan"),
            "solver/grad_norm": 0.35,
            "proposer/grad_norm": 28.0 / step,
        }
        if step in (20, 40):
            metrics |= {"eval/held-out/accuracy": 0.125 + 0.5 * learned, "eval/held-out/accuracy_se": 0.03}
        log.episodes(
            step,
            [episode("solver", 0.0, 1), episode("solver", 1.0), episode("solver", 1.0, 1), episode("proposer", 0.5)],
        )
        log.metrics(step, metrics)
    return folder


def test_a_report_may_lie_elsewhere(run: Path, tmp_path: Path) -> None:
    page = write_report(run, to=tmp_path / "shown")
    assert page == tmp_path / "shown" / "index.html" and "Which river?" in page.read_text(encoding="utf-8")
    assert not (run / "report").exists()


def test_series_have_the_measured_values() -> None:
    lines = [
        {"step": 0, "eval/a/accuracy": 0.5},
        {"step": 1, "solver/reward": 0.25, "x/reward": None, "eval/a/searches": 2.0, "solver/searches": 1.0},
        {"step": 2, "solver/reward": 0.75, "solver/grad_norm": 0.5, "proposer/grad_norm": 28.0},
    ]
    accuracy, reward, valid, searches, norm = (series(lines, panel) for panel in GAMES["ssp"].panels)
    assert accuracy == {"a": ([0], [0.5])}
    assert reward == {"solver": ([1, 2], [0.25, 0.75])}
    assert valid == {}
    assert searches == {"solver": ([1], [1.0])}
    assert norm == {"solver": ([2], [0.5]), "proposer": ([2], [28.0])}


def test_scopes_panels_separate_the_stages() -> None:
    line = {
        "step": 3,
        "eval/held_out/score": 0.5,
        "eval/held_out/exact": 0.25,
        "solver/task_score": 0.4,
        "creation/solver/task_score": 0.3,
        "creation/challenger/reward": 9.0,
        "challenger/reward": 0.7,
        "eval/held_out/searches": 1.0,
        "solver/searches": 2.0,
        "gates/passed": 0.9,
        "creation/gates/passed": 0.1,
        "solver/answer_tokens": 33.0,
        "solver/grad_norm": 0.2,
    }
    found = [{name: values for name, (_, values) in series([line], panel).items()} for panel in GAMES["scope"].panels]
    assert found == [
        {"held_out/score": [0.5], "held_out/exact": [0.25]},
        {"solver": [0.4], "creation/solver": [0.3]},
        {"challenger": [0.7]},
        {"solver": [2.0]},
        {"gates/passed": [0.9]},
        {"solver": [33.0]},
        {"solver": [0.2]},
    ]


def test_the_page_names_the_data_of_every_game() -> None:
    for game, key in (("spell", "clusters"), ("score", "queries"), ("spice", "documents"), ("ssp", "answers")):
        cfg = load_card(ROOT / "configs" / game / "atlas.toml")
        assert isinstance(path := getattr(cfg.data, key), str) and facts(cfg)[key] == path
    cfg = load_card(ROOT / "configs" / "spell" / "atlas.toml", ["data.questions=assets/atlas/a.jsonl"])
    assert facts(cfg)["questions"] == cfg.data.questions


def test_a_folder_without_steps_is_named(tmp_path: Path) -> None:
    RunFolder(tmp_path / "begun", parse_config(TABLE, "test card")).close()
    with pytest.raises(FileNotFoundError, match=r"no metrics.jsonl with a finished step"):
        write_report(tmp_path / "begun")
    with pytest.raises(FileNotFoundError, match=r"is not a run folder"):
        write_report(tmp_path)


def test_the_page_shows_scores_config_and_escaped_episodes(run: Path) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    assert "12.5 %" in page and "59.0 ± 3.0 %" in page
    assert "+46.5 points" in page
    assert "river of &lt;Aldmoor&gt;" in page
    assert "<Aldmoor>" not in page
    assert "The river Tarn flows past." in page
    assert "batch_size = 8" in page
    assert "Signs of collapse" not in page and "in force" not in page and "<h2>Learning</h2>" not in page
    assert "<img" not in page and page.count('<figure class="chart">') == 5
    assert "http://" not in page
    assert "https://" not in page


def test_examples_are_the_extremes_of_the_first_and_last_step(run: Path) -> None:
    chosen = [
        (e["step"], e["role"], e["reward"], len(e["text"]["turns"]))
        for e in examples(read_records(run / "episodes.jsonl"))
    ]
    assert chosen == [
        (40, "proposer", 0.5, 3), (40, "solver", 1.0, 3), (40, "solver", 0.0, 1),
        (1, "proposer", 0.5, 3), (1, "solver", 1.0, 3), (1, "solver", 0.0, 1),
    ]  # fmt: skip
    assert examples([]) == []
    equal = [{"step": 1, "role": "solver", "reward": 0.0, "text": {"turns": [{}] * turns}} for turns in (1, 3, 2, 3)]
    assert [len(record["text"]["turns"]) for record in examples(equal)] == [3, 3]


# ------------------------------------------------------------------------------------------- nothing to learn
def outcome(role: str, group: str, reward: float, trained: bool = True) -> Episode:
    return Episode(role, "actor", group, (), reward, trained=trained, text={"turns": []})


def rated(*given: Episode) -> list[Episode]:
    """Episodes with the advantages of a card."""
    return [
        one
        for role in dict.fromkeys(episode.role for episode in given)
        for one in assign([episode for episode in given if episode.role == role], LossCard())[0]
    ]


def test_a_step_that_teaches_a_role_nothing_is_a_sentence() -> None:
    zeros = rated(outcome("solver", "a", 0.0), outcome("solver", "a", 0.0))
    (said,) = watch.idle_roles(zeros)
    assert said.startswith("nothing to learn for the solver in this step: all rewards are 0; see in the report whether")
    (said,) = watch.idle_roles(rated(outcome("solver", "a", 1.0), outcome("solver", "a", 1.0)))
    assert "all rewards are 1; the tasks may be too easy" in said
    (said,) = watch.idle_roles(rated(outcome("solver", "a", -0.1), outcome("solver", "a", -0.1)))
    assert "all rewards are -0.1; see in the report whether its answers keep the format" in said
    by_group = rated(*(outcome("solver", name, reward) for name, reward in zip("aabb", (0, 0, 1, 1), strict=True)))
    (said,) = watch.idle_roles(by_group)
    assert "the rewards of each group are equal; more samples of a prompt" in said
    learning = rated(outcome("proposer", "a", 0.5), outcome("proposer", "a", 0.0))
    assert watch.idle_roles([*learning, outcome("solver", "a", 0.0, trained=False)]) == []
    (said,) = watch.idle_roles([*learning, *zeros])
    assert "the solver" in said


def test_a_cosine_that_has_ended_is_a_sentence() -> None:
    card = OptimizerSection(learning_rate=1e-5, warmup_steps=1, schedule="cosine", total_steps=9)
    rates = [float(learning_rate(card, jnp.int32(update))) for update in (0, 8, 9, 40)]
    said = [watch.idle_updates({"solver/learning_rate": rate, "solver/loss": 0.0}) for rate in rates]
    assert said[:2] == [[], []] and said[2] == said[3]
    assert said[2][0].startswith(
        "nothing is learned in the update of the solver: its learning rate is 0 from optimizer"
    )


def test_the_report_counts_steps_that_teach_nothing(tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", parse_config(TABLE, "test card"))
    for step in range(1, 10):
        values = (0.0, 0.0) if step != 4 else (0.0, 1.0)
        others = [outcome("proposer", "p", value) for value in (values if step == 2 else (0.25, 0.5))]
        log.episodes(step, rated(*(outcome("solver", "s", value) for value in values), *others))
        log.metrics(step, {"solver/reward": sum(values) / 2})
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert (
        "There was nothing to learn for the solver in 8 of 9 steps (the last: 5, 6, 7, 8, 9); in the latest all" in page
    )
    assert (
        "There was nothing to learn for the proposer in 1 of 9 steps (2); in the latest all rewards are 0; see" in page
    )


def test_the_report_knows_roles_that_learn_from_a_teacher_or_from_credits(tmp_path: Path) -> None:
    """All rewards are 0: of a role with a teacher, of one with credits in the second step, and of one with neither."""
    log = RunFolder(tmp_path / "run", parse_config(TABLE, "test card"))
    for step in (1, 2):
        credit_T = np.array([9.0, -0.5 if step == 2 else 0.0], np.float32)  # the first token is not sampled
        row = Datum(np.zeros(2, np.int32), np.array([False, True]), np.zeros(2, np.float32), credit_T=credit_T)
        by_turn = replace(outcome("player", "p", 0.0), datums=(row,))
        log.episodes(step, rated(*(outcome(role, "s", 0.0) for role in ("pupil", "idler", "solver")), by_turn))
        log.metrics(step, {"pupil+solver/teacher_k2": 0.1, "idler/kl_k3": 0.1})
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    said = re.findall(r"nothing to learn for the (\w+) in (\d of \d)", page)
    assert said == [("idler", "2 of 2"), ("player", "1 of 2")]


# ------------------------------------------------------------------------------------- signs of collapse, settings
def collapsing(step: int) -> dict[str, float]:
    """20 steps in which the replies of a group become identical and short, and entropy falls."""
    return {
        "solver/reward": 0.5,
        "solver/trained": 1.0,
        "solver/identical_pairs": step / 20,
        "evaluator/consistency": 0.5 + step / 40,
        "solver/response_tokens": 200.0 - 5 * step,
        "solver/response_tokens_se": 3.0,
        "solver/cut_off": 0.0,
        "solver/entropy": 1.0 / step,
        "evaluator/entropy": 0.5,
    }


def test_the_distance_of_sampler_and_trainer_is_shown_by_depth() -> None:
    """Of powers of two, if a role has more than one depth."""
    names = [f"solver/mismatch_{kind}@{depth}k" for kind in ("kl", "bias") for depth in (1, 2, 3, 4)]
    line = {"step": 1, "solver/mismatch_kl": 1e-3} | dict.fromkeys(names, 1e-4)
    kl, bias = depth_panels([line])
    assert [*series([line], kl)] == [f"solver/mismatch_kl@{depth}k" for depth in (1, 2, 4)]
    assert bias.names == tuple(f"solver/mismatch_bias@{depth}k" for depth in (1, 2, 4)) and kl.log and not bias.log
    assert depth_panels([{"step": 1, "solver/mismatch_kl@1k": 1e-4}]) == ()


def test_signs_of_collapse_are_charts_of_roles_that_were_sampled() -> None:
    lines = [{"step": step, **collapsing(step)} for step in range(1, 21)]
    lines[-1] |= {"solver/valid": 0.5, "solver/rejected_no_report": 0.5, "creation/solver/valid": 0.5}
    assert collapse_panels([{"step": 1, "solver/entropy": 0.5}]) == ()
    panels = {panel.title: series(lines, panel) for panel in collapse_panels(lines)}
    assert {title: {*found} for title, found in panels.items()} == {
        "Tokens of a reply": {"solver"},
        "Identical replies, agreement": {"solver/identical_pairs", "evaluator/consistency"},
        "Valid episodes, trained episodes": {"solver/valid", "solver/trained"},
        "Why others were rejected": {"solver"},
    }
    (found,) = panels["Why others were rejected"].values()
    assert found == (
        [*range(1, 21)],
        [0.0] * 19 + [0.5],
    )  # nothing was rejected in a step that does not name the reason


def test_curves_have_the_standard_errors_of_their_values() -> None:
    lines: list[dict[str, float]] = [{"step": step, **collapsing(step)} for step in range(1, 5)]
    del lines[1]["solver/response_tokens_se"]
    (panel, *_) = collapse_panels(lines)
    steps, values, errors = with_errors(lines, panel)["solver"]
    assert steps == [1, 2, 3, 4] and values == [195.0, 190.0, 185.0, 180.0]
    np.testing.assert_array_equal(errors, [3.0, np.nan, 3.0, 3.0])
    np.testing.assert_allclose(smooth_errors(errors, 2), [3.0, np.nan, np.nan, 3 / np.sqrt(2)])
    np.testing.assert_allclose(smooth_errors([3.0, 4.0, 0.0], 3), [3.0, 2.5, 5 / 3])  # √(9 + 16) / n
    (banded,) = charts(lines, [panel], {"solver": 0})[0].lines
    assert banded.band.count("M") == banded.band.count("Z") == 2  # to both sides of the step without one
    plain = [{k: v for k, v in line.items() if not k.endswith("_se")} for line in lines]
    assert charts(plain, [panel], {"solver": 0})[0].lines[0].band == ""


HARNESS = {"limits": {"k": 4, "names": ["a"]}, "notes": ""}
MORE = {"limits": {"k": 5, "names": ["a", "b"]}, "notes": "Look <twice>."}


def test_changes_are_listed_key_by_key() -> None:
    assert differences(HARNESS, MORE) == [
        "limits.k: 4 → 5", "limits.names: a → a, b", 'notes: "" → Look <twice>.',
    ]  # fmt: skip
    assert differences({"a": None, "b": {"c": []}}, {"b": {"c": [1]}, "d": True}) == [
        "b.c: none → 1", "d: nothing → true",
    ]  # fmt: skip


def setting(name: str, value: dict[str, Any], **fields: Any) -> Episode:
    return settings.SettingRecord(name, value, **fields).episode


def test_the_page_shows_collapse_and_every_setting_in_force(tmp_path: Path) -> None:
    """The initial setting, a failed attempt before the first step, a change after step 1, an invalid one after 2."""
    log = RunFolder(tmp_path / "run", parse_config(TABLE, "test card"))
    said = {
        1: [
            setting("harness", HARNESS, by="card", since=0),
            setting("harness", HARNESS, by="endpoint", since=0, attempt=settings.SettingChange(0, "is <down>")),
            setting("harness", MORE, by="endpoint", since=1, attempt=settings.SettingChange(1)),
        ],
        2: [
            setting("harness", MORE, by="endpoint", since=1),
            setting("harness", MORE, by="endpoint", since=1, attempt=settings.SettingChange(2, "k: too large")),
        ],
        3: [setting("harness", MORE, by="endpoint", since=1)],
    }
    for step, episodes in said.items():
        log.episodes(step, [episode("solver", 0.5), *episodes])
        log.metrics(step, collapsing(step))
    rows = Settings()
    assert len(list(rows.collect(read_records(tmp_path / "run" / "episodes.jsonl")))) == 9
    assert [(row.at, row.by, row.changes, row.problem) for row in rows.rows["harness"]] == [
        (0, "card", (), ""),
        (0, "endpoint", (), "is <down>"),
        (1, "endpoint", tuple(differences(HARNESS, MORE)), ""),
        (2, "endpoint", (), "k: too large"),
    ]
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Harness in force" in page and "limits.k: 4 → 5" in page and "Look &lt;twice&gt;." in page
    assert page.count("invalid, the one before stays: ") == 2 and "is &lt;down&gt;" in page
    assert "<h2>Learning</h2>" in page  # the entropy
    assert "Signs of collapse" in page and page.count('<figure class="chart">') == 5
    assert "0 in every step: solver: cut off." in page and "<td>solver/cut_off" not in page
    assert re.search(
        r"solver/identical_pairs <span .*\n *<td class=\"n\">5.0 %</td>\n *<td class=\"n\">15.0 %</td>", page
    )
    assert re.search(r"solver/response_tokens <span .*\n.*>195 <span class=\"faint\">± 3</span></td>", page)
    shown = [e["role"] for e in examples(read_records(tmp_path / "run" / "episodes.jsonl"))]
    assert shown == ["solver", "solver"]  # settings are not shown as episodes


def test_what_was_used_stands_beside_the_plan(tmp_path: Path) -> None:
    """By hand, of steps 2 and 3: 200 tokens sampled in 2 and 4 s, 600 trained in 3 s; planned: 50 and 400 a second."""
    log = RunFolder(tmp_path / "run", parse_config(TABLE, "test card"))
    log.metrics(0, {"eval/held-out/accuracy": 0.5, "time/evaluate": 9.0})
    for step, (playing, sampled) in enumerate([(70.0, 1.0), (2.0, 100.0), (4.0, 50.0)], start=1):
        times = {"time/play": playing, "time/learn": 3.0, "time/checkpoint": 0.001}
        speeds = {"perf/generated_tokens_per_second": sampled, "perf/trained_tokens_per_second": 200.0}
        log.metrics(step, times | speeds | {"perf/process_memory_peak_gib": 0.25 * step})
    lines = [line for line in read_records(tmp_path / "run" / "metrics.jsonl") if line["step"]]
    memory, playing, learning = usage(tmp_path / "run", lines)
    assert (memory, playing) == (Usage("memory of the process", "", "0.75 GiB"), Usage("playing", "", "3.0 s"))
    plan = {"on": "1 x H100", "phase": "generate", "peak_gib": 0.9, "generated_tokens_per_second": 50.0}
    write_json(tmp_path / "run" / PLAN, plan | {"trained_tokens_per_second": 400.0})
    memory, playing, learning = usage(tmp_path / "run", lines)
    assert (playing, learning) == (Usage("playing", "4.0 s", "3.0 s"), Usage("learning", "1.5 s", "3.0 s"))
    assert used(tmp_path / "run") == (
        "used: memory of the process 0.75 GiB (planned 0.90 GiB in the phase generate), playing 3.0 s (planned 4.0 s), "
        "learning 3.0 s (planned 1.5 s) of a step"
    )
    device = [line | {"perf/device_memory_peak_gib": 0.5} for line in lines]
    assert usage(tmp_path / "run", device)[0] == replace(memory, what="memory of a device", used="0.50 GiB")
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "<h2>Plan and use</h2>" in page and '<td class="n">0.90 GiB in the phase generate</td>' in page
    assert usage(tmp_path / "none", []) == []


def test_progress_in_plain_lines() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=40)) as progress:
        progress.say("[not markup] " + "x" * 60)
        for done in range(1, 5):
            progress.part("passages", done, 4)
        progress.step(1, 2, {"solver/reward": 0.25, "time/play": 3.0}, 0, 0.0)
    lines = out.getvalue().splitlines()
    assert lines[0] == "[not markup] " + "x" * 60
    assert lines[1] == "passages 4/4"
    assert lines[2].startswith("step 1/2  solver/reward 0.250  ")
    assert "time/play" not in lines[2]
    assert len(lines) == 3


def test_progress_on_a_terminal_draws_bars() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=True, width=120)) as progress:
        progress.part("passages", 3, 4)
        progress.step(1, 2, {"solver/reward": 0.25}, 0, 0.0)
    text = out.getvalue()
    assert "3/4" in text
    assert "solver/reward 0.250" in text
    assert "━" in text


def test_the_page_says_why_a_run_was_stopped(tmp_path: Path) -> None:
    rule = {"metric": "solver/reward", "below": 0.1, "steps": 2}
    log = RunFolder(tmp_path / "run", parse_config(TABLE | {"train": TABLE["train"] | {"watch": [rule]}}, "test card"))
    said = "solver/reward was below 0.1 (or not finite) in 2 consecutive steps."
    for step in (1, 2):
        log.episodes(step, [episode("solver", 0.0)])
        log.metrics(step, {"solver/reward": 0.0})
        assert (said in write_report(tmp_path / "run").read_text(encoding="utf-8")) == (step == 2)
