"""The `legato bench` subcommand."""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
from tqdm import tqdm

from legato_cli import explain
from legato_cli.bench import burst, load, profile, report, workload
from legato_cli.bench.client import Record, complete

API_KEY = "OPENAI_API_KEY"  # as clients of OpenAI's API read it


def run(args: argparse.Namespace) -> int:
    """Measures and prints; exit code 0 if every request was answered, 1 if some failed, 2 for bad arguments."""
    try:
        summaries, watch = asyncio.run(_measure(args))
    except (ValueError, OSError) as error:
        print(f"legato bench: {error}", file=sys.stderr)
        return 2
    print(report.table(summaries))
    if watch is not None:
        print("\n".join(["", *burst.lines(watch, [burst.BurstPhase(*phase) for phase in args.burst])]))
    for summary in summaries:
        for text in summary.errors:
            print(f"{summary.load}: {text}", file=sys.stderr)
    if args.json:
        found = {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "arguments": _plain(args),
            "loads": [s.as_json() for s in summaries],
        }
        if watch is not None:
            found["scaling"] = burst.changes_as_json(watch)
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if any(s.failed for s in summaries) else 0


async def _measure(args: argparse.Namespace) -> tuple[list[report.Summary], burst.ScalingWatch | None]:
    """A summary of each load; with --burst also what the autoscaler did."""
    _check(args)
    slo = report.Objectives(args.slo_ttft, args.slo_tpot)
    async with _client(args) as client:
        model = args.model or await _first_model(client)
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
            found = await _load(client, model, requests, name, concurrency, rate, args.seed)
            summaries.append(report.summarize(name, found, slo))
        return summaries, None


def _client(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    key = environ.get(API_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(base_url=args.url, timeout=args.timeout, limits=limits, headers=headers)


async def _burst(
    args: argparse.Namespace, client: httpx.AsyncClient, model: str, slo: report.Objectives
) -> tuple[list[report.Summary], burst.ScalingWatch]:
    """A summary of each phase, and what the autoscaler did meanwhile."""
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
    args: argparse.Namespace, client: httpx.AsyncClient, model: str, slo: report.Objectives
) -> list[report.Summary]:
    """Loads of its own, and then the file."""
    summaries = []
    for name, concurrency, requests in profile.loads(args.context, workload.TokenRange(*args.token_ids), args.seed):
        found = await _load(client, model, requests, name, concurrency, None, args.seed)
        summaries.append(report.summarize(name, found, slo))
    made = await profile.read(args.namespace, args.service)
    args.profile.write_bytes(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    return summaries


async def _first_model(client: httpx.AsyncClient) -> str:
    """The first model that the server lists. Raises ValueError, which names the URL."""
    url = client.base_url.join("/v1/models")
    try:
        response = await client.get("/v1/models")
    except httpx.HTTPError as error:
        raise ValueError(f"cannot reach {url}: {error or type(error).__name__}") from None
    if response.status_code != 200:
        raise ValueError(f"{url} answered {response.status_code}: {response.text[:200]}")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{url} lists no model: {response.text[:200]} (name one with --model)") from None


async def _load(
    client: httpx.AsyncClient,
    model: str,
    requests: list[workload.WorkloadRequest],
    name: str,
    concurrency: int | None,
    rate: float | None,
    seed: int,
) -> load.Run:
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
    given = [flag for flag in ("concurrency", "rate", "burst") if getattr(args, flag)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(f'--{flag}' for flag in given)} cannot be given together")
    if args.burst and args.workload == "trace":
        raise ValueError("--burst has arrival times of its own: --workload trace cannot be given with it")


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


def _plain(args: argparse.Namespace) -> dict[str, object]:
    """The arguments as JSON has them: durations in seconds."""
    shown = {key: value for key, value in vars(args).items() if not callable(value)}
    return {key: str(value) if isinstance(value, Path) else value for key, value in shown.items()}
