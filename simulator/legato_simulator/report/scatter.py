"""Two figures of many trials as points, as inline SVG like `plots`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from legato_simulator.report.plots import HEIGHT, WIDTH, frame, x_label

_TICKS = 4  # about as many distances between labels of an axis


@dataclass(frozen=True)
class Points:
    """Those of one kind. The look is a class of the style sheet: `faint`, `one`, `written` or `chosen`."""

    label: str
    look: str
    at: Sequence[tuple[float, float, str]]  # across, up, and what it is: a browser shows it on hover
    joined: bool = False  # by a line of steps, which rises where a point does


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    every: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "_Axis":
        """From one round number to another, with all values between."""
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
    """A plot with title, unit, legend and both axes; `line` is a value of the vertical one that is marked. What comes
    last is drawn on top."""
    points = [point for kind in kinds for point in kind.at]
    across = _Axis.of([point[0] for point in points])
    up = _Axis.of([point[1] for point in points] + ([] if line is None else [line]))
    marked = "" if line is None else f'<path class="mark" d="M0 {_y(up, line)}H{WIDTH}"/>'
    drawn = marked + "".join(_steps(kind, across, up) for kind in kinds if kind.joined)
    drawn += "".join(_dots(kind, across, up) for kind in kinds)
    legend = [(f"dot {kind.look}", kind.label) for kind in kinds]
    ticks = [(up.share(value), value) for value in up.ticks]
    below = "".join(x_label(100 * across.share(value), value) for value in across.ticks)
    return frame(title, unit, described, legend, drawn, ticks, below)


def _round(least: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten: 100 % is a multiple of it."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if least <= step * power * (1 + 1e-9))


def _x(axis: _Axis, value: float) -> str:
    return f"{axis.share(value) * WIDTH:.1f}"


def _y(axis: _Axis, value: float) -> str:
    return f"{(1 - axis.share(value)) * HEIGHT:.1f}"


def _dots(kind: Points, across: _Axis, up: _Axis) -> str:
    """Lines of no length with round ends: the drawing is stretched to its place, and circles would be, too."""
    return "".join(
        f'<path class="dot {kind.look}" d="M{_x(across, x)} {_y(up, y)}h0"><title>{escape(text)}</title></path>'
        for x, y, text in kind.at
    )


def _steps(kind: Points, across: _Axis, up: _Axis) -> str:
    (x, y, _), *rest = sorted(kind.at)
    steps = "".join(f"H{_x(across, x)}V{_y(up, y)}" for x, y, _ in rest)
    return f'<path class="{kind.look}" d="M{_x(across, x)} {_y(up, y)}{steps}H{WIDTH}"/>'
