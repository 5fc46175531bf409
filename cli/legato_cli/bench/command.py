"""The `legato bench` subcommand."""

import argparse
import asyncio
import sys
import time
from dataclasses import replace

import httpx
import msgspec
from tqdm import tqdm

from legato_cli.bench import burst, load, profile, report, server, workload
from legato_cli.bench.client import Record, complete
from legato_cli.errors import CannotRun
from legato_cli.services import explain

_SINGLE = {"input_tokens": 256, "output_tokens": 64}  # defaults of flags that take one value without --matrix
TTFT, TPOT = 1.0, 0.1  # objectives in seconds, if none are given


def run(args: argparse.Namespace) -> int:
    """Measures and prints. Exit code 1: requests failed. Raises CannotRun for bad arguments."""
    try:
        summaries, watch = asyncio.run(_measure(args))
    except (ValueError, OSError) as error:
        raise CannotRun(str(error)) from None
    print(report.table(summaries))
    if watch is not None:
        print("\n".join(["", *burst.lines(watch, [burst.BurstPhase(*phase) for phase in args.burst])]))
    for summary in summaries:
        for text in summary.errors:
            print(f"{summary.load}: {text}", file=sys.stderr)
    results: dict[str, object] = {"loads": [s.as_json() for s in summaries]}
    if watch is not None:
        results["scaling"] = burst.changes_as_json(watch)
    report.write(args, results)
    return 1 if any(s.failed for s in summaries) else 0


async def _measure(args: argparse.Namespace) -> tuple[list[report.Summary], burst.ScalingWatch | None]:
    """Returns a summary of each load; with --burst also the autoscaler's changes."""
    _check(args)
    _fill(args)
    slo = report.LatencyObjectives(args.slo_ttft, args.slo_tpot)
    async with server.connect(args) as client:
        model = args.model or await server.first_model(client)
        if args.profile:
            return await _profile(args, client, model, slo), None
        if args.burst:
            return await _burst(args, client, model, slo)
        summaries = []
        for number, (name, concurrency, rate) in enumerate(_loads(args)):
            count = args.requests or max(8, 3 * (concurrency or 8))
            requests = _requests(args, count, args.seed + number)
            for warm in _requests(args, min(args.warmup, count), args.seed + 1000 + number):
                await complete(client, model, warm)
            finished = await _load(client, model, requests, name, concurrency, rate, args.seed)
            summaries.append(report.summarize(name, finished, slo))
        return summaries, None


async def _burst(
    args: argparse.Namespace, client: httpx.AsyncClient, model: str, slo: report.LatencyObjectives
) -> tuple[list[report.Summary], burst.ScalingWatch]:
    """Returns a summary of each phase, and the autoscaler's changes."""
    phases = [burst.BurstPhase(*phase) for phase in args.burst]
    sent = burst.arrivals(phases, args.seed)
    requests = [replace(r, at=at) for r, (_, at) in zip(_requests(args, len(sent), args.seed), sent, strict=True)]
    for warm in _requests(args, min(args.warmup, len(sent)), args.seed + 1000):
        await complete(client, model, warm)
    watch = burst.ScalingWatch(lambda: explain.read(args.namespace, args.service), time.time())
    run = await burst.watched(watch, _load(client, model, requests, "burst", None, None, args.seed))
    runs = burst.by_phase(run.records, sent, phases)
    return [report.summarize(phase.name, each, slo) for phase, each in zip(phases, runs, strict=True)], watch


async def _profile(
    args: argparse.Namespace, client: httpx.AsyncClient, model: str, slo: report.LatencyObjectives
) -> list[report.Summary]:
    """Runs the profile's loads and writes the file."""
    summaries = []
    for name, concurrency, requests in profile.loads(args.context, workload.TokenRange(*args.token_ids), args.seed):
        finished = await _load(client, model, requests, name, concurrency, None, args.seed)
        summaries.append(report.summarize(name, finished, slo))
    made = await profile.read(args.namespace, args.service, model)
    args.profile.write_bytes(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    return summaries


async def _load(
    client: httpx.AsyncClient,
    model: str,
    requests: list[workload.WorkloadRequest],
    name: str,
    concurrency: int | None,
    rate: float | None,
    seed: int,
) -> load.LoadRun:
    with tqdm(total=len(requests), desc=name, unit="req", file=sys.stderr, leave=False) as bar:

        async def send(request: workload.WorkloadRequest) -> Record:
            record = await complete(client, model, request)
            bar.update()
            return record

        if concurrency:
            return await load.closed(send, requests, concurrency)
        return await load.open_loop(send, requests, rate, seed)


def _check(args: argparse.Namespace) -> None:
    """Raises ValueError for flags that contradict each other."""
    report.check(args.json)
    given = [flag for flag in ("concurrency", "rate", "burst") if getattr(args, flag)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(f'--{flag}' for flag in given)} cannot be given together")
    if args.burst and args.workload == "trace":
        raise ValueError("--burst has arrival times of its own: --workload trace cannot be given with it")


def _fill(args: argparse.Namespace) -> None:
    """Sets defaults for missing flags. Raises ValueError for several sizes, which only a matrix has."""
    for name, default in _SINGLE.items():
        values = getattr(args, name) or [default]
        if len(values) > 1:
            raise ValueError(f"several --{name.replace('_', '-')} need --matrix")
        setattr(args, name, values[0])
    args.slo_ttft, args.slo_tpot = args.slo_ttft or TTFT, args.slo_tpot or TPOT


def _loads(args: argparse.Namespace) -> list[tuple[str, int | None, float | None]]:
    """(name, concurrency, rate) of each load; a trace without a rate keeps its own times."""
    if args.rate:
        return [(f"{rate:g} req/s", None, rate) for rate in args.rate]
    if args.workload == "trace" and not args.concurrency:
        return [(f"trace ×{args.speed:g}", None, None)]
    return [(f"c = {c}", c, None) for c in args.concurrency or [1, 8, 32]]


def _requests(args: argparse.Namespace, count: int, seed: int) -> list[workload.WorkloadRequest]:
    tokens = workload.TokenRange(*args.token_ids)
    if args.workload == "trace":
        if not args.trace:
            raise ValueError("--workload trace needs --trace FILE")
        return workload.trace(args.trace, count, args.context, args.speed, tokens, seed)
    shape = (count, args.input_tokens, args.output_tokens, tokens, seed)
    if args.workload == "shared-prefix":
        return workload.shared_prefix(*shape, args.prefixes, args.prefix_share)
    return workload.fixed(*shape)
