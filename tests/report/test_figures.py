"""The kit that draws: what is described is drawn, in its place, and covered by nothing."""

import re

import numpy as np
import pytest

from tacit.report.figures import PALETTE, Figure, Heat, Panel, Series, draw, svg
from tacit.report.page import sections

LINES = [Series(f"line {at}", [0, 5, 10], [0.0, at, 1.0], PALETTE[at], group=f"group {at}") for at in range(6)]


@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_legend_covers_no_curve(count: int) -> None:
    canvas = draw([Figure("one", "", [Panel("title", "round", "accuracy", LINES[:count])])])
    canvas.canvas.draw()
    (axes,) = [axes for part in canvas.subfigs for place in part.subfigs for axes in place.axes]
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 >= axes.get_window_extent().y1
    assert axes.get_window_extent().height > 120


def test_points_of_a_page_lie_where_the_line_is_drawn() -> None:
    chart = svg(Panel("", "x", "y", [Series("a", [0, 1, 2], [3.0, 1.0, 2.0])]), "chart-7")
    path = re.search(r'id="chart-7-series-0-0">\s*<path d="([^"]*)"', chart.svg)
    assert path is not None
    drawn = np.array([float(number) for number in re.findall(r"-?\d+\.?\d*", path[1])]).reshape(-1, 2)
    assert drawn == pytest.approx(np.array([point[:2] for point in chart.points[0]]), abs=0.2)
    assert [point[2:] for point in chart.points[0]] == [("0", "3"), ("1", "1"), ("2", "2")]


def test_charts_of_one_page_share_no_id() -> None:
    page = sections([Figure("two", "", [Panel("", "x", "y", LINES[:2]), Panel("", "x", "y", LINES[:2])])])
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_a_page_follows_the_readers_colours_and_an_unseeing_reader_is_told() -> None:
    chart = svg(Panel("t", "round", "accuracy", LINES[:1]), "c").svg
    assert "currentColor" in chart
    assert "#222222" not in chart
    assert 'role="img" aria-label="t; accuracy by round; line 0 ends at 1"' in chart


def test_a_name_is_text_and_never_a_formula_or_a_tag() -> None:
    chart = svg(Panel("", "x", "y", [Series("<b>$x_1$", [1], [1])], x_names={1: "</svg>"}), "c").svg
    assert "<b>" not in chart
    assert chart.count("</svg>") == 1
    assert "$x_1$" in chart


def test_a_heat_map_names_its_cells() -> None:
    names = {0: "a", 1: "b"}
    chart = svg(Panel("", "", "", heat=Heat(np.array([[1.0, 0.5], [0.25, 1.0]])), x_names=names, y_names=names), "c")
    assert [point[2:] for point in chart.points[0]] == [("a, a", "1"), ("a, b", "0.5"), ("b, a", "0.25"), ("b, b", "1")]


def test_a_wide_line_ends_where_its_interval_does() -> None:
    canvas = draw([Figure("one", "", [Panel("", "x", "y", [Series("interval", [0, 1], [0.0, 0.0], width=7)])])])
    (line,) = [line for part in canvas.subfigs for place in part.subfigs for line in place.axes[0].get_lines()][:1]
    assert line.get_solid_capstyle() == "butt"
