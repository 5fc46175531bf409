"""The HTML report of simulations: tables and plots over time, in one file without scripts."""

from collections.abc import Iterable, Sequence
from html import escape

from legato_simulator.baselines import BASELINES, BOUND
from legato_simulator.baselines.comparison import Comparison, Entry
from legato_simulator.baselines.tuning import ATTAINMENT, reaches
from legato_simulator.engine.result import Sample
from legato_simulator.report.plots import Line, figure, number
from legato_simulator.report.style import STYLE
from legato_simulator.workload.synthetic import ABOUT

DETAIL = ' class="detail"'  # the look of a table whose last column is text
_COLUMNS = (
    "scaler",
    "attainment",
    "GPU-hours",
    "× best baseline",
    "reversals / h",
    "TTFT p50, p90 (s)",
    "TPOT p90 (ms)",
    "tuned to",
)


def html(comparison: Comparison, title: str) -> str:
    """Returns the page. Deterministic for a comparison."""
    overview = _overview(comparison) if len(comparison.workloads) > 1 else ""
    sections = "".join(_section(comparison, workload) for workload in comparison.workloads)
    return page(title, f"{overview}{sections}{_notes(comparison)}")


def page(title: str, body: str) -> str:
    """Returns a whole HTML file with this body."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def table(head: Iterable[str], rows: Iterable[Sequence[str]], look: str = "") -> str:
    """Returns a table of cells in HTML; the first cell of each row is its header. `look` are attributes of the tag."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{c}</td>" for c in row[1:])}</tr>' for row in rows
    )
    return f'<div class="wide"><table{look}><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table></div>'


def _overview(comparison: Comparison) -> str:
    names = dict.fromkeys(entry.result.scaler for entry in comparison.entries)
    head = "".join(f'<th scope="col">{escape(workload)}</th>' for workload in comparison.workloads)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(_short(comparison, comparison.entry(workload, name)) for workload in comparison.workloads)
        + "</tr>"
        for name in names
    )
    return (
        "<h2>Overview</h2><p>GPU-hours, and below them the attainment; "
        f"✗ is less than {ATTAINMENT:.0%}. Bold: the best tuned baseline.</p>"
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _short(comparison: Comparison, entry: Entry | None) -> str:
    if entry is None:
        return "<td>–</td>"
    hours = number(entry.result.gpu_hours)
    if entry == comparison.best(entry.result.workload):
        hours = f"<b>{hours}</b>"
    return f"<td>{hours}<br>{_attainment(entry)}</td>"


def _attainment(entry: Entry) -> str:
    text = f"{100 * entry.result.attainment:.1f} %"
    return f'<span class="good">{text}</span>' if reaches(entry.result) else f'<span class="miss">✗ {text}</span>'


def _section(comparison: Comparison, workload: str) -> str:
    entries = comparison.entries_of(workload)
    about = ABOUT.get(workload, "")
    return (
        f"<section><h2>{escape(workload)}</h2><p>{escape(about)}{'. ' if about else ''}"
        f"{entries[0].result.offered} requests in {entries[0].result.seconds / 60:.0f} min.</p>"
        f"{table(_COLUMNS, [_row(comparison, entry) for entry in entries], DETAIL)}"
        f'<div class="plots">{_plots(_plotted(comparison, workload))}</div></section>'
    )


def _row(comparison: Comparison, entry: Entry) -> Sequence[str]:
    result, ratio = entry.result, comparison.ratio(entry)
    return (
        escape(entry.name),
        _attainment(entry),
        f"{result.gpu_hours:.2f}",
        f"{ratio:.2f}" if ratio is not None else "–",
        escape(", ".join(f"{pool} {count:.1f}" for pool, count in sorted(result.reversals.items()))),
        f"{result.ttft.p50:.2f}, {result.ttft.p90:.2f}",
        f"{1e3 * result.tpot.p90:.0f}",
        escape(entry.chosen) or "nothing",
    )


def _plotted(comparison: Comparison, workload: str) -> list[Entry]:
    """Returns the first scaler's entry, and the best baseline's to compare it with."""
    first, best = comparison.entries_of(workload)[0], comparison.best(workload)
    return [first, best] if best and best != first else [first]


def _plots(entries: Sequence[Entry]) -> str:
    looks = ("one", "two")
    shown = [(entry.name, entry.result.timeline, look) for entry, look in zip(entries, looks, strict=False)]
    first = shown[0][1]
    pools = sorted({pool for sample in first for pool in sample.ready}, reverse=True)
    figures = [
        figure("Load", "prompt tokens/s", [Line("", first, lambda s: s.tokens_per_second, "one")]),
        figure("Arrivals", "requests/s", [Line("", first, lambda s: s.arrivals_per_second, "one")]),
        figure("Queue", "uncached prompt tokens", [Line(n, t, lambda s: s.queue_tokens, look) for n, t, look in shown]),
        figure(
            "KV pressure",
            "used % of decode workers' KV",
            [Line(n, t, lambda s: 100 * s.kv_usage, look) for n, t, look in shown],
            100,
        ),
        *(_workers(pool, shown) for pool in pools),
        figure(
            "Attainment so far",
            "% of ended requests",
            [Line(n, t, lambda s: 100 * s.attainment_so_far, look) for n, t, look in shown],
            100,
        ),
    ]
    return "".join(figures)


def _workers(pool: str, shown: Sequence[tuple[str, Sequence[Sample], str]]) -> str:
    def ready(sample: Sample) -> float:
        return sample.ready.get(pool, 0)

    def desired(sample: Sample) -> float:
        return sample.desired.get(pool, 0)

    name, timeline, look = shown[0]
    lines = [Line(f"{name}: ready", timeline, ready, f"{look} area", True)]
    lines.append(Line(f"{name}: desired", timeline, desired, look, True))
    lines.extend(Line(f"{other}: ready", t, ready, style, True) for other, t, style in shown[1:])
    return figure(f"{pool.capitalize()} pool", "workers", lines)


def _notes(comparison: Comparison) -> str:
    names = dict.fromkeys(entry.result.scaler for entry in comparison.entries if entry.result.scaler in BASELINES)
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(BASELINES[name].about)}</dd>" for name in names)
    bound = f" {BOUND} is a bound, not a baseline." if BOUND in names else ""
    return (
        "<section><h2>How to read this</h2><p>A request is good if its time to first token, from its arrival, and its "
        "mean time per output token are both within the objectives. Attainment is good ÷ all offered requests. "
        "GPU-hours run from a worker's creation to its deletion. A reversal is a change of the desired size opposite "
        "to one less than 600 s before. Baselines are tuned for each workload, Legato for none."
        f"{bound}</p><dl>{items}</dl></section>"
    )
