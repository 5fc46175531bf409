"""Scatter plots of trials as inline SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from legato_simulator.report.plots import HEIGHT, WIDTH, frame, x_label

_TICKS = 4  # approximate number of intervals between labels of an axis


@dataclass(frozen=True)
class Points:
    """The points of one kind. `look` is a class of the style sheet: `faint`, `one`, `written` or `chosen`."""

    label: str
    look: str
    at: Sequence[tuple[float, float, str]]  # x, y, and the text that a browser shows on hover
    joined: bool = False  # True: a step line joins them


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    every: float

    @classmethod
    def around(cls, values: Sequence[float]) -> "_Axis":
        """Returns an axis between two round numbers that contains all values."""
        every = _round((max(values) - min(values) or abs(values[0]) or 1.0) / _TICKS)
        low = math.floor(min(values) / every + 1e-9) * every
        high = math.ceil(max(values) / every - 1e-9) * every
        return cls(low, max(high, low + every), every)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        return [self.low + i * self.every for i in range(round((self.high - self.low) / self.every) + 1)]


def figure(title: str, unit: str, described: str, kinds: Sequence[Points], line: float | None = None) -> str:
    """Returns a plot with title, unit, legend and axes; the last kind is drawn on top.

    `line` is a marked value of the vertical axis.
    """
    points = [point for kind in kinds for point in kind.at]
    across = _Axis.around([point[0] for point in points])
    up = _Axis.around([point[1] for point in points] + ([] if line is None else [line]))
    marked = "" if line is None else f'<path class="mark" d="M0 {_y(up, line)}H{WIDTH}"/>'
    drawn = marked + "".join(_steps(kind, across, up) for kind in kinds if kind.joined)
    drawn += "".join(_dots(kind, across, up) for kind in kinds)
    legend = [(f"dot {kind.look}", kind.label) for kind in kinds]
    ticks = [(up.share(value), value) for value in up.ticks]
    below = "".join(x_label(100 * across.share(value), value) for value in across.ticks)
    return frame(title, unit, described, legend, drawn, ticks, below)


def _round(least: float) -> float:
    """Returns the next 1, 2, 5 or 10 times a power of ten: 100 % is a multiple of it."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if least <= step * power * (1 + 1e-9))


def _x(axis: _Axis, value: float) -> str:
    return f"{axis.share(value) * WIDTH:.1f}"


def _y(axis: _Axis, value: float) -> str:
    return f"{(1 - axis.share(value)) * HEIGHT:.1f}"


def _dots(kind: Points, across: _Axis, up: _Axis) -> str:
    """Draws points as lines of zero length with round ends: circles would be stretched with the drawing."""
    return "".join(
        f'<path class="dot {kind.look}" d="M{_x(across, x)} {_y(up, y)}h0"><title>{escape(text)}</title></path>'
        for x, y, text in kind.at
    )


def _steps(kind: Points, across: _Axis, up: _Axis) -> str:
    (x, y, _), *rest = sorted(kind.at)
    steps = "".join(f"H{_x(across, x)}V{_y(up, y)}" for x, y, _ in rest)
    return f'<path class="{kind.look}" d="M{_x(across, x)} {_y(up, y)}{steps}H{WIDTH}"/>'
