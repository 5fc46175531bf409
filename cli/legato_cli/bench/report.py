"""Computes figures from records: percentiles, throughput, goodput; as a table and as JSON."""

import argparse
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from legato_cli.bench.client import Record
from legato_cli.bench.load import LoadRun

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class LatencyObjectives:
    """Latency objectives in seconds; a request that keeps both counts as goodput."""

    ttft: float
    tpot: float

    def kept_by(self, record: Record) -> bool:
        return not record.error and record.ttft <= self.ttft and record.tpot <= self.tpot


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one load. Latencies are milliseconds, keyed by percentile."""

    load: str
    requests: int
    failed: int
    seconds: float
    output_tokens_per_second: float
    input_tokens_per_second: float
    requests_per_second: float
    goodput_per_second: float
    cached_share: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    itl_ms: dict[str, float]
    errors: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def summarize(load: str, run: LoadRun, slo: LatencyObjectives) -> Summary:
    """Returns the figures of a run; failed requests only count as failed."""
    good = [r for r in run.records if not r.error]
    prompt_tokens = sum(r.input_tokens for r in good)
    return Summary(
        load=load,
        requests=len(run.records),
        failed=len(run.records) - len(good),
        seconds=run.seconds,
        output_tokens_per_second=sum(r.output_tokens for r in good) / run.seconds,
        input_tokens_per_second=prompt_tokens / run.seconds,
        requests_per_second=len(good) / run.seconds,
        goodput_per_second=sum(map(slo.kept_by, run.records)) / run.seconds,
        cached_share=sum(r.cached_tokens for r in good) / max(1, prompt_tokens),
        ttft_ms=percentiles([r.ttft for r in good]),
        tpot_ms=percentiles([r.tpot for r in good]),
        itl_ms=percentiles([gap for r in good for gap in r.gaps]),
        errors=tuple(sorted({r.error for r in run.records if r.error}))[:5],
    )


def table(summaries: list[Summary]) -> str:
    """Returns a Markdown table with a row per load."""
    head = ["load", "ok", "out tok/s", "req/s", "good/s", "cached", "TTFT p50/p90/p99 ms", "TPOT ms", "ITL ms"]
    return markdown(head, map(_row, summaries))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def check(path: Path | None) -> None:
    """Raises ValueError, before anything is measured, if figures cannot be written to this file."""
    if path and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise ValueError(f"--json: cannot write to {path}")


def write(args: argparse.Namespace, figures: Mapping[str, object]) -> None:
    """Writes the date, the arguments (durations in seconds) and the figures to `args.json`, if given."""
    if args.json is None:
        return
    shown = {key: value for key, value in vars(args).items() if not callable(value)}
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in shown.items()}
    report = {"date": time.strftime("%Y-%m-%d %H:%M"), "arguments": plain, **figures}
    args.json.write_text(json.dumps(report, indent=2) + "\n")


def _row(s: Summary) -> list[str]:
    return [
        s.load,
        f"{s.requests - s.failed}/{s.requests}",
        f"{s.output_tokens_per_second:.1f}",
        f"{s.requests_per_second:.2f}",
        f"{s.goodput_per_second:.2f}",
        f"{s.cached_share:.0%}",
        *(" / ".join(f"{ms[f'p{p}']:.1f}" for p in PERCENTILES) for ms in (s.ttft_ms, s.tpot_ms, s.itl_ms)),
    ]


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Returns nearest-rank percentiles in milliseconds; 0 without values."""
    ordered = sorted(seconds) or [0.0]
    return {f"p{p}": ordered[max(0, -(-len(ordered) * p // 100) - 1)] * 1e3 for p in PERCENTILES}
