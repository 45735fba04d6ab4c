"""Line charts as inline SVG: they take the page's colours, scale to any width and need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

LARGE, SMALL = (560, 260), (330, 200)
"""Sizes in text units: a chart drawn small needs a small sheet, or its numbers cannot be read."""
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40


@dataclass
class Series:
    """One line: points (x, y), optional intervals (low, high) per point; `style` adds a CSS class."""

    name: str
    colour: int
    points: list[tuple[float, float]]
    ends: list[tuple[float, float] | None] = field(default_factory=list)
    style: str = ""
    dots: bool = True


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span [low, high]."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * f for f in (1, 2, 2.5, 5, 10) if size * f >= raw)
    first = math.floor(low / step)
    return [k * step for k in range(first, math.ceil(high / step - 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Short, without rounding noise."""
    return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.0e}"


class _Frame:
    """Data coordinates to pixels."""

    def __init__(self, series: Sequence[Series], log_x: bool, from_zero: bool, size: tuple[int, int]) -> None:
        self.log_x = log_x
        self.width, self.height = size
        xs = [self.x_of(x) for s in series for x, _ in s.points]
        ys = [y for s in series for _, y in s.points] + [y for s in series for e in s.ends if e for y in e]
        self.left, self.right = min(xs), max(xs)
        if self.right == self.left:
            self.left, self.right = self.left - 0.5, self.right + 0.5
        self.y_ticks = ticks(0.0 if from_zero and min(ys) >= 0 else min(ys), max(ys))

    def x_of(self, x: float) -> float:
        return math.log2(x) if self.log_x else x

    def x(self, x: float) -> float:
        share = (self.x_of(x) - self.left) / (self.right - self.left)
        return round(LEFT + 14 + share * (self.width - LEFT - RIGHT - 28), 1)

    def y(self, y: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        clipped = min(max(y, low), high)
        return round(self.height - BOTTOM - (clipped - low) / (high - low) * (self.height - TOP - BOTTOM), 1)


def line_chart(
    series: Sequence[Series],
    x_title: str,
    title: str,
    log_x: bool = True,
    from_zero: bool = False,
    size: tuple[int, int] = SMALL,
) -> str:
    """One chart; `title` is read to those who cannot see it."""
    drawn = [s for s in series if s.points]
    if not drawn:
        return ""
    frame = _Frame(drawn, log_x, from_zero, size)
    width, height = size
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">']
    for value in frame.y_ticks:
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{tick_text(value)}</text>')
    xs = sorted({x for s in drawn for x, _ in s.points})
    for value in xs if log_x and len(xs) <= 12 else ticks(xs[0], xs[-1], 4):
        if xs[0] <= value <= xs[-1]:
            parts.append(_x_label(frame, value))
    middle = (LEFT + width) / 2
    parts.append(f'<text x="{middle}" y="{height - 4}" text-anchor="middle">{escape(x_title)}</text>')
    for one in drawn:
        parts += _line(one, frame)
    return "".join([*parts, "</svg>"])


def _x_label(frame: _Frame, value: float) -> str:
    x, y = frame.x(value), frame.height - BOTTOM + 16
    return f'<text x="{x}" y="{y}" text-anchor="middle">{tick_text(value)}</text>'


def _line(one: Series, frame: _Frame) -> list[str]:
    """The line, its dots and its intervals."""
    path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in one.points)
    out = [f'<polyline class="line c{one.colour} {one.style}" style="fill:none" points="{path}"/>']
    for (x, y), ends in zip(one.points, one.ends or [None] * len(one.points), strict=True):
        if ends is not None:
            at = frame.x(x)
            low, high = frame.y(ends[0]), frame.y(ends[1])
            out.append(f'<path class="c{one.colour}" d="M{at} {low}V{high}m-4 0h8M{at - 4} {low}h8"/>')
        if one.dots:
            label = escape(f"{one.name}: {tick_text(x)} → {y:.4g}")
            place = f'cx="{frame.x(x)}" cy="{frame.y(y)}" r="3.5"'
            out.append(f'<circle class="c{one.colour}" {place}><title>{label}</title></circle>')
    return out
