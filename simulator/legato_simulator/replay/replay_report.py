"""The HTML report of a replay: recorded and replayed sizes over time, in one file."""

from collections.abc import Iterable, Sequence
from html import escape

from legato_simulator.engine.result import Sample
from legato_simulator.replay import replay_text
from legato_simulator.replay.replay import Replay
from legato_simulator.report import report
from legato_simulator.report.plots import Line, figure


def html(replay: Replay, title: str) -> str:
    """Returns the page. Deterministic for a replay."""
    limits = "".join(f"<p>{escape(text)}</p>" for text in replay_text.LIMITS)
    body = (
        f"<p>{escape(replay_text.about(replay))}.</p>{_pools(replay)}{_reasons(replay)}"
        f'<div class="plots">{_plots(replay)}</div><section><h2>What a replay cannot show</h2>{limits}</section>'
    )
    return report.page(title, body)


def _pools(replay: Replay) -> str:
    rows = [
        (
            name,
            f"{pool.recorded_hours:.2f}",
            f"{pool.hours:.2f}",
            f"{pool.recorded_most}",
            f"{pool.most}",
            f"{pool.recorded_reversals:.1f}",
            f"{pool.reversals:.1f}",
            f"{pool.differs:.1%}",
        )
        for name, pool in replay.pools.items()
    ]
    hours = ("GPUs", f"{replay.recorded_gpu_hours:.2f}", f"{replay.gpu_hours:.2f}", *[""] * 5)
    head = (
        *("", "worker-hours recorded", "replayed", "most workers recorded", "replayed"),
        *("reversals / h recorded", "replayed", "time with another size"),
    )
    return _table(head, [*rows, hours])


def _reasons(replay: Replay) -> str:
    rows = [
        (name, f"{share:.1%}", reason) for name, pool in replay.pools.items() for reason, share in pool.reasons.items()
    ]
    return f"<h2>Why</h2>{_table(('pool', 'time', 'reason'), rows)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return report.table(map(escape, head), [[*map(escape, row)] for row in rows], report.DETAIL)


def _plots(replay: Replay) -> str:
    samples = [moment.recorded for moment in replay.timeline]
    figures = [
        figure("Load", "uncached prompt tokens/s", [Line("", samples, lambda s: s.tokens_per_second, "one")]),
        figure("Arrivals", "requests/s", [Line("", samples, lambda s: s.arrivals_per_second, "one")]),
        figure("Queue", "uncached prompt tokens", [Line("", samples, lambda s: s.queue_tokens, "one")]),
        figure(
            "KV pressure", "used % of decode workers' KV", [Line("", samples, lambda s: 100 * s.kv_usage, "one")], 100
        ),
        *(_sizes(pool, replay, samples) for pool in replay.pools),
    ]
    return "".join(figures)


def _sizes(pool: str, replay: Replay, samples: Sequence[Sample]) -> str:
    replayed = {moment.recorded.at: moment.replayed[pool] for moment in replay.timeline}
    lines = [
        Line("recorded: ready", samples, lambda s: s.ready.get(pool, 0), "one area", True),
        Line("recorded: desired", samples, lambda s: s.desired.get(pool, 0), "one", True),
        Line("replayed: desired", samples, lambda s: replayed[s.at], "two", True),
    ]
    return figure(f"{pool.capitalize()} pool", "workers", lines)
