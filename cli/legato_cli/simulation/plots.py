"""Lines over time as inline SVG. Labels are HTML beside it, so that they stay readable however narrow the page is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from legato_cli.simulation.result import Sample

_WIDTH, _HEIGHT = 600, 150  # of the drawing, which is stretched to its place
_POINTS = 300  # at most, of one line
_TICKS = (1, 2, 5, 10, 20, 30, 60)  # between labels of the horizontal axis, in its unit
_MOST_TICKS = 7

Value = Callable[[Sample], float]


@dataclass(frozen=True)
class Line:
    """One line of a plot. Its look is a class of the style sheet: `one` or `two`, and `area` to fill it."""

    label: str
    timeline: Sequence[Sample]
    value: Value
    look: str
    steps: bool = False  # holds a value until the next one


def figure(title: str, unit: str, lines: Sequence[Line], most: float | None = None) -> str:
    """A plot with title, unit, legend and both axes. `most` fixes the upper end of the vertical axis."""
    end = max((line.timeline[-1].at for line in lines if line.timeline), default=0.0) or 1.0
    top = most or _nice(max((line.value(s) for line in lines for s in line.timeline), default=0.0))
    paths = "".join(_path(line, end, top) for line in lines)
    ticks = [top * share for share in (0, 0.5, 1)]
    across = "".join(f'<line x1="0" x2="{_WIDTH}" y1="{y}" y2="{y}"/>' for y in (0, _HEIGHT / 2, _HEIGHT))
    return (
        f'<figure><figcaption><b>{escape(title)}</b> <span class="unit">{escape(unit)}</span>{_legend(lines)}'
        f'</figcaption><div class="plot"><div class="y">{"".join(map(_y_label, ticks, (0, 50, 100)))}</div>'
        f'<svg role="img" aria-label="{escape(f"{title} over time")}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'preserveAspectRatio="none"><g class="grid">{across}</g>{paths}</svg>'
        f'<div class="x">{_x_labels(end)}</div></div></figure>'
    )


def number(value: float) -> str:
    """Short: 1.2k, 35k, 0.4."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _legend(lines: Sequence[Line]) -> str:
    items = (f'<li><i class="{line.look}"></i>{escape(line.label)}</li>' for line in lines if line.label)
    return f"<ul>{''.join(items)}</ul>"


def _path(line: Line, end: float, top: float) -> str:
    points = [(s.at / end * _WIDTH, (1 - min(line.value(s) / top, 1)) * _HEIGHT) for s in _thinned(line)]
    if not points:
        return ""
    begin, commands, x = points[0], [], points[0][0]
    for x, y in points[1:]:
        commands.append(f"H{x:.1f}V{y:.1f}" if line.steps else f"L{x:.1f} {y:.1f}")
    drawn = f"M{begin[0]:.1f} {begin[1]:.1f}{''.join(commands)}"
    closed = f"{drawn}V{_HEIGHT}H{begin[0]:.1f}Z" if "area" in line.look.split() else drawn
    return f'<path class="{line.look}" d="{closed}"/>'


def _thinned(line: Line) -> list[Sample]:
    """Of every few samples the one with the largest value, so that no peak is lost."""
    several = math.ceil(len(line.timeline) / _POINTS) or 1
    return [max(line.timeline[i : i + several], key=line.value) for i in range(0, len(line.timeline), several)]


def _nice(most: float) -> float:
    """The next of 1, 2, 4, 6, 8, 10 times a power of ten: half of it is a short number, too."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next((step * power for step in (1, 2, 4, 6, 8) if most <= step * power * (1 + 1e-9)), 10 * power)


def _y_label(value: float, percent: int) -> str:
    return f'<span style="bottom:{percent}%">{number(value)}</span>'


def _x_labels(end: float) -> str:
    size, unit = (3600.0, "h") if end > 3 * 3600 else (60.0, "min") if end > 180 else (1.0, "s")
    every = next((step for step in _TICKS if end / size / step <= _MOST_TICKS), _nice(end / size / _MOST_TICKS))
    count = math.floor(end / size / every + 1e-9)
    return "".join(_x_label(100 * i * every * size / end, i * every, unit if not i else "") for i in range(count + 1))


def _x_label(percent: float, value: float, unit: str) -> str:
    return f'<span style="left:{percent:.2f}%">{number(value)} {unit}</span>'
