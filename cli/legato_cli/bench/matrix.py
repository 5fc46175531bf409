"""Cells of prompt × output × sampling × adapter × arrival, and the envelope of those that meet the objectives. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from legato_cli.bench import report
from legato_cli.bench.client import GREEDY, Record
from legato_cli.bench.load import LoadRun
from legato_cli.bench.state_watch import Route

MET = 0.9  # share of a cell's requests that have to keep both objectives
NO_ADAPTER = "none"
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": {"temperature": 1.0, "top_p": 0.95},
    "penalized": {"temperature": 1.0, "top_p": 0.95, "frequency_penalty": 0.5},
}
Shape = tuple[int, int, str, str]  # prompt and output tokens, sampling, adapters
_PARTS = ("queue", "prefill", "handoff")  # of the time to the first token


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A closed loop with this concurrency, or an open one with this rate per second."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"{self.rate:g} req/s" if self.rate else f"c = {self.concurrency}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One load. Requests alternate between `models`: the model, or its adapters."""

    input_tokens: int
    output_tokens: int
    sampling: str
    models: tuple[str, ...]
    adapter: str  # value on the axis of adapters: `none`, or their count
    arrivals: Arrivals

    @property
    def shape(self) -> Shape:
        return self.input_tokens, self.output_tokens, self.sampling, self.adapter

    @property
    def name(self) -> str:
        with_adapter = "" if self.adapter == NO_ADAPTER else f", {self.adapter}"
        return f"{self.input_tokens}/{self.output_tokens}, {self.sampling}{with_adapter}, {self.arrivals.name}"


@dataclass(frozen=True, slots=True)
class CellResult:
    """Figures of a cell. `missed` counts requests that did not keep both objectives, by reason."""

    cell: Cell
    summary: report.Summary
    missed: Mapping[str, int]
    queue_ms: Mapping[str, float] | None  # None: the service's state could not be read
    preemptions: int | None

    @property
    def kept(self) -> float:
        """Share of the requests that kept both objectives."""
        return 1 - sum(self.missed.values()) / max(1, self.summary.requests)

    @property
    def met(self) -> bool:
        return self.kept >= MET

    def as_json(self) -> dict[str, object]:
        cell = self.cell
        return {
            "input_tokens": cell.input_tokens,
            "output_tokens": cell.output_tokens,
            "sampling": cell.sampling,
            "adapter": cell.adapter,
            "concurrency": cell.arrivals.concurrency,
            "rate": cell.arrivals.rate,
            "met": self.met,
            "kept": self.kept,
            "missed": dict(self.missed),
            "queue_ms": self.queue_ms,
            "preemptions": self.preemptions,
            **self.summary.as_json(),
        }


def cells(
    inputs: Sequence[int],
    outputs: Sequence[int],
    samplings: Sequence[str],
    arrivals: Sequence[Arrivals],
    model: str,
    adapters: Sequence[str],
) -> list[Cell]:
    """Returns all cells, grouped by shape. Without adapters, only the model itself is measured."""
    axis: list[tuple[str, tuple[str, ...]]] = [(NO_ADAPTER, (model,))]
    if adapters:
        axis.append((f"{len(adapters)} adapter{'s' if len(adapters) > 1 else ''}", tuple(adapters)))
    return [
        Cell(prompt, output, sampling, models, adapter, each)
        for prompt, output, sampling, (adapter, models), each in product(inputs, outputs, samplings, axis, arrivals)
    ]


def judge(cell: Cell, run: LoadRun, slo: report.LatencyObjectives, routes: Mapping[str, Route] | None) -> CellResult:
    """Returns the figures of a cell. `routes` has its requests by id, or is None if the service could not be read.

    A request that was cut off is judged by its tokens so far. It is ignored if it had none, and was still younger than
    the objective for its first token.
    """
    records = [each for each in run.records if each.cut is None or each.arrivals or each.ttft > slo.ttft]
    waits = [_queue(each, routes) for each in records if not each.error] if routes is not None else None
    preemptions = [routes[each.id]["preemptions"] for each in records if each.id in routes] if routes else []
    return CellResult(
        cell,
        report.summarize(cell.name, LoadRun(records, run.seconds), slo),
        Counter(_reason(each, slo, routes) for each in records if not slo.kept_by(each)),
        report.percentiles(waits) if waits is not None else None,
        sum(preemptions) if routes is not None else None,
    )


def _queue(record: Record, routes: Mapping[str, Route] | None) -> float:
    """Returns the seconds in the queue.

    All seconds count for a request without a token whose prefill has not started.
    """
    route = (routes or {}).get(record.id)
    if route is None:
        return 0.0 if record.arrivals else record.ttft
    started = record.arrivals or route["stage"] == "prefilling"
    return float(route["seconds"].get("queue", 0.0 if started else record.ttft))


def _reason(record: Record, slo: report.LatencyObjectives, routes: Mapping[str, Route] | None) -> str:
    """Returns the reason for which a request did not keep both objectives."""
    route = (routes or {}).get(record.id)
    if record.refused:
        return f"refused ({record.refused})"
    if record.error:
        return "failed"
    if route is not None and route["preemptions"]:
        return "preempted"
    if record.ttft <= slo.ttft:
        return "decode"
    if routes is None:
        return "first token"
    known = {part: route["seconds"].get(part, 0.0) for part in _PARTS} if route is not None and record.arrivals else {}
    if any(known.values()):
        return max(known, key=known.__getitem__)
    return "prefill" if route is not None and route["stage"] == "prefilling" else "queue"


def table(results: Sequence[CellResult]) -> str:
    """Returns a table with a row per cell."""
    head = ["prompt", "output", "sampling", "adapter", "arrival", "kept", "TTFT p90 ms", "TPOT p90 ms", "queue p90 ms"]
    return report.markdown([*head, "out tok/s", "preempted", "missed by"], map(_row, results))


def _row(result: CellResult) -> list[str]:
    summary = result.summary
    return [
        *map(str, result.cell.shape),
        result.cell.arrivals.name,
        f"{result.kept:.0%} of {summary.requests}",
        f"{summary.ttft_ms['p90']:.0f}",
        f"{summary.tpot_ms['p90']:.0f}",
        f"{result.queue_ms['p90']:.0f}" if result.queue_ms is not None else "?",
        f"{summary.output_tokens_per_second:.0f}",
        "?" if result.preemptions is None else str(result.preemptions),
        _reasons(result.missed),
    ]


def _reasons(missed: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(missed.items(), key=lambda each: -each[1])) or "–"


def envelope(results: Sequence[CellResult]) -> str:
    """Returns a row per shape: the highest arrivals up to which all cells meet the objectives, and cells beyond."""
    head = ["prompt", "output", "sampling", "adapter", "meets the objectives up to", "beyond"]
    return report.markdown(head, _envelope(results))


def _envelope(results: Sequence[CellResult]) -> Iterator[list[str]]:
    for shape, group in groupby(results, key=lambda result: result.cell.shape):
        same = list(group)
        within = next((number for number, result in enumerate(same) if not result.met), len(same))
        beyond = [f"{each.cell.arrivals.name}: {each.kept:.0%} kept, {_reasons(each.missed)}" for each in same[within:]]
        last = same[within - 1].cell.arrivals.name if within else "none of them"
        yield [*map(str, shape), last, "; ".join(beyond) or "not reached"]
