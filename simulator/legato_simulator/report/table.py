"""Results of a simulation as Markdown tables."""

from collections.abc import Sequence
from typing import TypeVar

from legato_engine.policy import Profile
from legato_operator.policy import Spec
from legato_simulator.baselines.comparison import Comparison, Entry
from legato_simulator.engine.result import Quantiles, Result, Sample
from legato_simulator.workload.workload import Workload

MOST_ROWS = 20  # of a printed timeline
LOAD = ("time", "requests/s", "tokens/s", "queue tokens", "KV")

_T = TypeVar("_T")


def comparison_table(comparison: Comparison) -> str:
    """Returns a Markdown table with a row for each scaler on each workload."""
    head = ["workload", "scaler", "good", "GPU-hours", "TTFT p50/p90/p99 s", "TPOT ms", "reversals/h", "not served"]
    return markdown([head, *map(_row, comparison.entries)])


def _row(entry: Entry) -> list[str]:
    result = entry.result
    return [
        result.workload,
        f"{entry.name} ({entry.chosen})" if entry.chosen else entry.name,
        f"{result.attainment:.1%}",
        f"{result.gpu_hours:.2f}",
        _quantiles(result.ttft, 1, 2),
        _quantiles(result.tpot, 1000, 1),
        ", ".join(f"{pool} {count:.1f}" for pool, count in sorted(result.reversals.items(), reverse=True)),
        f"{result.refused + result.unfinished} of {result.offered}",
    ]


def about(workload: Workload, spec: Spec, profile: Profile) -> str:
    """Returns its size, and the number of requests that are too long for the service."""
    lengths = [arrival.prompt + arrival.output for arrival in workload.arrivals]
    text = f"{len(lengths)} request{'' if len(lengths) == 1 else 's'} in {workload.arrivals[-1].at / 60:.0f} min"
    bounds = ((spec.model.max_length, "model.maxLength"), (profile.kv_tokens, "the profile's kvTokens"))
    for most, name in [(most, name) for most, name in bounds if most is not None]:
        if longer := sum(length > most for length in lengths):
            text += f"; {longer} are longer than {name}, {most} tokens, and are refused"
    return text


def timeline(result: Result) -> str:
    """Returns a table of evenly spaced samples: load, queue, KV, desired and ready workers."""
    samples = result.timeline
    pools = sorted(samples[0].desired, reverse=True)
    head = [*LOAD, *(f"{pool} desired/ready" for pool in pools), "good"]
    return markdown([head, *(_moment(sample, pools) for sample in spread(samples))])


def spread(moments: Sequence[_T]) -> Sequence[_T]:
    """Returns at most `MOST_ROWS` evenly spaced moments of a timeline."""
    count = len(moments)
    return [moments[i * count // MOST_ROWS] for i in range(MOST_ROWS)] if count > MOST_ROWS else moments


def clock(seconds: float) -> str:
    """Formats seconds as 1:02:03."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def _moment(sample: Sample, pools: list[str]) -> list[str]:
    sizes = [f"{sample.desired[pool]}/{sample.ready[pool]}" for pool in pools]
    return [*load(sample), *sizes, f"{sample.attainment_so_far:.1%}"]


def load(sample: Sample) -> list[str]:
    """Returns the cells of the columns `LOAD`."""
    return [
        clock(sample.at),
        f"{sample.arrivals_per_second:.2f}",
        f"{sample.tokens_per_second:.0f}",
        str(sample.queue_tokens),
        f"{sample.kv_usage:.0%}",
    ]


def _quantiles(latency: Quantiles, unit: float, digits: int) -> str:
    return " / ".join(f"{value * unit:.{digits}f}" for value in (latency.p50, latency.p90, latency.p99))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as a Markdown table; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
