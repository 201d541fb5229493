"""Charts: what is drawn where, which metrics, and what a legend says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from scope_jax.games import GAMES
from scope_jax.play.game import GRADIENT, REWARD, Panel
from scope_jax.report.charts import (
    FRAME,
    MOST,
    Curve,
    chart,
    charts,
    charts_together,
    colours,
    kept,
    log_ticks,
    short,
    smooth,
    ticks,
    value_axis,
)
from scope_jax.report.page import drawn
from scope_jax.report.panels import LEARNING, once, series, words


def test_smoothing_is_a_moving_average() -> None:
    np.testing.assert_allclose(smooth([1.0, 2.0, 3.0, 5.0], 2), [1.0, 1.5, 2.5, 4.0])
    np.testing.assert_allclose(smooth([1.0, 2.0], 1), [1.0, 2.0])


def test_a_chart_has_each_value_in_its_place() -> None:
    """By hand: 414 units for 4 steps from 56 on, 176 units for 1.05 times the highest value from 184 up."""
    lines = [{"step": step, "solver/reward": value} for step, value in ((1, 0.5), (2, 1.0), (4, 0.0))]
    (found,) = charts(lines, [REWARD], {"solver": 3})
    (line,) = found.lines
    assert (FRAME.left, FRAME.right, FRAME.top, FRAME.bottom) == (56, 470, 8, 184)
    assert line.path == "M159.5,100.2L263,16.4L470,184" and line.dots == ((159.5, 100.2), (263.0, 16.4), (470.0, 184.0))
    assert (line.label, line.colour, line.steps, line.shown) == ("solver", 3, "1 2 4", ("0.5", "1", "0"))
    assert (line.faint, line.band, found.window, found.title) == ("", "", 1, "Mean reward")
    assert found.x_ticks == tuple((56 + 103.5 * step, str(step)) for step in range(5))
    assert [text for _, text in found.y_ticks] == ["0", "0.5", "1"]


def test_a_long_curve_is_an_average_that_keeps_every_peak() -> None:
    values = [0.0] * 5000
    values[1234], values[4000] = 7.0, -3.0
    lines = [{"step": step, "solver/reward": value} for step, value in enumerate(values, start=1)]
    (found,) = charts(lines, [REWARD], {"solver": 0})
    (line,) = found.lines
    assert found.window == 500 and line.faint and not line.dots and len(line.shown) <= MOST + 2
    at = line.steps.split().index("1235")
    assert line.shown[at] == "7" and line.shown[line.steps.split().index("4001")] == "-3"
    assert kept([1.0] * MOST) == [*range(MOST)]


def test_charts_have_round_ticks() -> None:
    assert ticks(0, 14, whole=True) == [0, 5, 10] and ticks(0, 3, whole=True) == [0, 1, 2, 3]
    assert ticks(-0.3, 0.52) == pytest.approx([-0.2, 0.0, 0.2, 0.4]) and ticks(0, 1e100)[1] == pytest.approx(2e99)
    assert log_ticks(0.35, 0.35) == pytest.approx([0.2, 0.5]) and log_ticks(0.5, 0.5) == pytest.approx([0.5, 1])
    assert log_ticks(0.3, 28) == pytest.approx([0.2, 0.5, 1, 2, 5, 10, 20, 50])
    assert log_ticks(1e-3, 1e3) == pytest.approx([10.0**power for power in range(-3, 4)])


def test_numbers_of_ticks_are_short() -> None:
    numbers = (0.0, 0.25, -0.001, 1.5e-4, -2e-8, 12000.0, 300000.0, 2.5e9)
    assert [short(number) for number in numbers] == [
        *("0", "0.25", "-0.001", "1.5e-4", "-2e-8", "12000", "3e5", "2.5e9"),
    ]


def test_values_are_told_with_their_errors() -> None:
    curve = Curve("a", [1, 2, 3], [0.625, 14002.4, 1e-5], [0.0409, math.nan, math.nan], 0)
    assert chart(Panel("Any", (), False), [curve], 3).lines[0].shown == ("0.625 ± 0.041", "14,002", "1e-05")
    assert chart(Panel("Any", (), True), [curve], 3).lines[0].shown[0] == "62.5 ± 4.1 %"


def test_what_has_no_positive_value_is_on_a_linear_scale() -> None:
    (found,) = charts([{"step": 1, "solver/grad_norm": 0.0}], GAMES["ssp"].panels[-1:], {"solver": 0})
    assert found.lines[0].dots == ((470.0, 184.0),) and found.y_ticks[0] == (184.0, "0")


def test_panels_without_values_are_not_drawn_and_nothing_is_drawn_twice() -> None:
    """The page of a run on given answers without an evaluation: no accuracy, one loss, nothing that was generated."""
    lines = [
        {"step": step, "sft/loss": 2.0, "sft/grad_norm": 1.0, "sft/entropy": 0.5, "time/learn": 0.5, "time/play": 0.1}
        | {"perf/generated_tokens_per_second": 0.0, "perf/trained_tokens_per_second": 9.0}
        for step in (1, 2)
    ]
    found = {name: [one.title for one in own] for name, own in drawn(lines, GAMES["sft"].panels).items()}
    assert found == {
        "curves": ["Loss", "Gradient norm before the clip"],
        "learning": ["Entropy of a token"],
        "speed": ["Seconds of a phase", "Tokens per second"],
        "collapse": [],
    }
    assert [line.label for line in drawn(lines, GAMES["sft"].panels)["speed"][1].lines] == ["trained"]


@pytest.mark.parametrize("game", sorted(GAMES))
def test_no_metric_of_any_game_is_drawn_twice(game: str) -> None:
    """A line with all metrics that its panels, or those of all games, name."""
    panels = GAMES[game].panels
    names = {f"x{name}" if name.startswith("/") else name for panel in (*panels, *LEARNING) for name in panel.names}
    lines = [{"step": 1} | dict.fromkeys(names, 0.5) | {f"eval/set{name}": 0.5 for name in ("/accuracy", "/score")}]
    once_each = once(lines, (*panels, *LEARNING))
    shown = [name for panel in once_each for name in _names(lines, panel)]
    assert len(shown) == len(set(shown)) and set(shown) == {
        name for panel in (*panels, *LEARNING) for name in _names(lines, panel)
    }


def _names(lines: list[dict[str, Any]], panel: Panel) -> list[str]:
    """The metrics of the only line that a panel shows: each changes the panel's values when it is another."""
    (line,) = lines
    return [name for name in line if name != "step" and series([line | {name: 9.0}], panel) != series([line], panel)]


def test_legends_have_words() -> None:
    assert words("held_out/f1") == "held out: f1" and words("creation/solver") == "creation: solver"
    assert words("time/play") == "playing" and words("perf/generated_tokens_per_second") == "generated"
    assert words("first+second") == "first + second" and words("solver/kl_k2_plain") == "solver: k2, plain"
    assert words("solver/mismatch_kl@2k") == "solver: KL at 2k"


def test_a_comparison_has_a_curve_for_each_of_many_metrics() -> None:
    lines = [{"step": 1, **{f"eval/{name}/accuracy": 0.5 for name in "abcdefgh"}}]
    (found,) = charts_together({"one": lines, "two": lines}, GAMES["ssp"].panels[:1])
    assert len(found.lines) == 16 and {line.colour for line in found.lines} == {0, 1}
    assert [line.label for line in found.lines[:2]] == ["one: a", "one: b"]
    assert len({line.dash for line in found.lines}) == 6


def test_labels_of_a_panel_have_colours_of_their_own() -> None:
    lines = [{"step": 1, **{f"{name}/reward": 0.5 for name in "abcdefg"}, "h/grad_norm": 1.0, "a/grad_norm": 1.0}]
    found = colours(lines, [REWARD, GRADIENT])
    assert sorted(found[name] for name in "abcdefg") == [*range(7)] and found["h"] != found["a"]


@pytest.mark.parametrize("values", [[5e-324], [0.0, 5e-324], [-5e-324, 5e-324], [5e-324, 1.0], [1e-310, 2e-310]])
@pytest.mark.parametrize("log", [False, True])
def test_axes_of_the_smallest_numbers(values: list[float], log: bool) -> None:
    axis, found = value_axis(Panel("Loss", ("a/loss",), False, log=log), values)
    assert axis.low < axis.high and all(0 <= axis.at(value) <= 1 for value in values)
    assert all(math.isfinite(number) for number in found)
