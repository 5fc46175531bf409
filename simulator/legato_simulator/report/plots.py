"""Line plots over time as inline SVG. Labels are HTML next to it, so that they stay readable on narrow pages."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from legato_simulator.engine.result import Sample

WIDTH, HEIGHT = 600, 150  # of the drawing, which the browser stretches
_POINTS = 300  # at most, of one line
_TICKS = (1, 2, 5, 10, 20, 30, 60)  # between labels of the horizontal axis, in its unit
_MOST_TICKS = 7

Value = Callable[[Sample], float]


@dataclass(frozen=True)
class Line:
    """One line of a plot. `look` has classes of the style sheet: `one` or `two`, and `area` to fill it."""

    label: str
    timeline: Sequence[Sample]
    value: Value
    look: str
    steps: bool = False  # holds a value until the next one


def figure(title: str, unit: str, lines: Sequence[Line], most: float | None = None) -> str:
    """Returns a plot with title, unit, legend and axes. `most` fixes the upper end of the vertical axis."""
    end = max((line.timeline[-1].at for line in lines if line.timeline), default=0.0) or 1.0
    top = most or _nice(max((line.value(s) for line in lines for s in line.timeline), default=0.0))
    paths = "".join(_path(line, end, top) for line in lines)
    legend = [(line.look, line.label) for line in lines if line.label]
    ticks = [(share, top * share) for share in (0, 0.5, 1)]
    return frame(title, unit, f"{title} over time", legend, paths, ticks, _x_labels(end))


def frame(
    title: str,
    unit: str,
    described: str,
    legend: Sequence[tuple[str, str]],
    drawn: str,
    ticks: Sequence[tuple[float, float]],
    below: str,
) -> str:
    """Returns a plot around the drawing.

    `legend` has look and text; `ticks` have the share of the vertical axis and the value; `below` has the labels of the
    horizontal axis as HTML.
    """
    across = "".join(
        f'<line x1="0" x2="{WIDTH}" y1="{y:g}" y2="{y:g}"/>' for y in (HEIGHT * (1 - at) for at, _ in ticks)
    )
    labels = "".join(f'<span style="bottom:{100 * at:.4g}%">{number(value)}</span>' for at, value in ticks)
    items = "".join(f'<li><i class="{look}"></i>{escape(text)}</li>' for look, text in legend)
    return (
        f'<figure><figcaption><b>{escape(title)}</b> <span class="unit">{escape(unit)}</span><ul>{items}</ul>'
        f'</figcaption><div class="plot"><div class="y">{labels}</div>'
        f'<svg role="img" aria-label="{escape(described)}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none"><g class="grid">{across}</g>{drawn}</svg>'
        f'<div class="x">{below}</div></div></figure>'
    )


def number(value: float) -> str:
    """Formats a number briefly: 1.2k, 35k, 0.4."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _nice(most: float) -> float:
    """Returns the next 1, 2, 4, 6, 8 or 10 times a power of ten: half of it is a short number as well."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next((step * power for step in (1, 2, 4, 6, 8) if most <= step * power * (1 + 1e-9)), 10 * power)


def x_label(percent: float, value: float, unit: str = "") -> str:
    """Returns a label at this share of the horizontal axis."""
    return f'<span style="left:{percent:.2f}%">{number(value)} {unit}</span>'


def _path(line: Line, end: float, top: float) -> str:
    points = [(s.at / end * WIDTH, (1 - min(line.value(s) / top, 1)) * HEIGHT) for s in _thinned(line)]
    if not points:
        return ""
    begin, commands, x = points[0], [], points[0][0]
    for x, y in points[1:]:
        commands.append(f"H{x:.1f}V{y:.1f}" if line.steps else f"L{x:.1f} {y:.1f}")
    drawn = f"M{begin[0]:.1f} {begin[1]:.1f}{''.join(commands)}"
    closed = f"{drawn}V{HEIGHT}H{begin[0]:.1f}Z" if "area" in line.look.split() else drawn
    return f'<path class="{line.look}" d="{closed}"/>'


def _thinned(line: Line) -> list[Sample]:
    """Returns the sample with the largest value of every few, so that no peak is lost."""
    several = math.ceil(len(line.timeline) / _POINTS) or 1
    return [max(line.timeline[i : i + several], key=line.value) for i in range(0, len(line.timeline), several)]


def _x_labels(end: float) -> str:
    size, unit = (3600.0, "h") if end > 3 * 3600 else (60.0, "min") if end > 180 else (1.0, "s")
    every = next((step for step in _TICKS if end / size / step <= _MOST_TICKS), _nice(end / size / _MOST_TICKS))
    count = math.floor(end / size / every + 1e-9)
    return "".join(x_label(100 * i * every * size / end, i * every, unit if not i else "") for i in range(count + 1))
