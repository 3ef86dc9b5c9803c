"""The plot of a comparison, as SVG text: a panel a recorded space, a line with its interval a sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 300  # of a panel, in pixels
LEFT, RIGHT, TOP, BOTTOM = 56, 100, 30, 40
LOWEST, HIGHEST = 0.001, 2.0  # regret; what lies beyond is drawn at the edge
TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
COLOURS = ("#888888", "#1b6ca8", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One sampler: after each candidate the median regret and the ends of its interval."""

    name: str
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One recorded space."""

    title: str
    curves: tuple[Curve, ...]


def svg(panels: Sequence[Panel]) -> str:
    """Returns an SVG file with the panels below one another; both axes are logarithmic."""
    drawn = "".join(
        f'<g transform="translate(0,{HEIGHT * place})">{_panel(panel)}</g>'
        for place, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT * len(panels)}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{drawn}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    count = len(panel.curves[0].points)
    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>']
    parts += [_grid_line(_y(tick), f"{tick:.1%}") for tick in TICKS]
    for candidates in _decades(count):
        x = _x(candidates, count)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 24}" text-anchor="middle">{candidates}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">candidates measured</text>')
    for place, curve in enumerate(panel.curves):
        parts.append(_curve(curve, count, COLOURS[place % len(COLOURS)], TOP + 12 + 16 * place))
    return "".join(parts)


def _grid_line(y: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _curve(curve: Curve, count: int, colour: str, label_y: int) -> str:
    xs = [_x(place + 1, count) for place in range(count)]
    median, low, high = ([_y(point[part]) for point in curve.points] for part in range(3))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, median))
    edge = [*zip(xs, high), *reversed([*zip(xs, low)])]
    band = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
    return (
        f'<polygon points="{band}" fill="{colour}" opacity="0.15"/>'
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        f'<text x="{WIDTH - RIGHT + 8}" y="{label_y}" fill="{colour}">{escape(curve.name)}</text>'
    )


def _x(candidates: int, count: int) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * math.log(candidates) / math.log(max(count, 2))


def _y(regret: float) -> float:
    share = math.log(min(max(regret, LOWEST), HIGHEST) / LOWEST) / math.log(HIGHEST / LOWEST)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def _decades(count: int) -> list[int]:
    return [tick for tick in (1, 2, 4, 8, 16, 30, 60, 100, 300, 1000, 3000, 10_000) if tick <= count]
