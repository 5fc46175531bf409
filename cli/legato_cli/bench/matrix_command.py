"""`legato bench --matrix`: the operating envelope of a running service, cell by cell."""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice, takewhile
from typing import Any

import httpx
from tqdm import tqdm

from legato_cli.bench import burst, load, matrix, report, server, state_watch, workload
from legato_cli.bench.client import Record, complete
from legato_cli.bench.matrix import Arrivals, Cell, CellResult
from legato_cli.errors import CannotRun, ServiceUnavailable
from legato_cli.services import asking
from legato_operator.api.resources import Slo
from legato_protocol.settings import durations

INPUTS, OUTPUTS, SAMPLINGS, RATES = [64, 512], [16, 64], ["greedy", "sampled"], [1.0, 4.0, 16.0]
AGAIN = 1.0  # seconds that a user of a closed loop pauses after an error


def run(args: argparse.Namespace) -> int:
    """Measures and prints. Exit code 1: requests failed; refused ones do not count.

    Raises CannotRun for bad arguments, or without a server.
    """
    results: list[CellResult] = []
    try:
        _check(args)
        slo = _objectives(args)  # asks Kubernetes in an event loop of its own
        asyncio.run(_measure(args, slo, results))
    except KeyboardInterrupt:
        _show(args, results)
        raise
    except (ValueError, OSError) as error:
        _show(args, results)
        raise CannotRun(str(error)) from None
    _show(args, results)
    return 1 if any(result.missed.get("failed") for result in results) else 0


def _show(args: argparse.Namespace, results: Sequence[CellResult]) -> None:
    """Prints and writes the measured cells, if any."""
    if not results:
        return
    print(f"{matrix.table(results)}\n\n{matrix.envelope(results)}")
    for result in results:
        for text in result.summary.errors if result.missed.get("failed") else ():
            print(f"{result.cell.name}: {text}", file=sys.stderr)
    report.write(args, {"cells": [result.as_json() for result in results]})


async def _measure(args: argparse.Namespace, slo: report.LatencyObjectives, results: list[CellResult]) -> None:
    """Measures cell after cell, and appends each result, so that an interruption keeps them."""
    async with server.connect(args) as client:
        todo = _cells(args, await server.models(client))
        watch = state_watch.of_service(args.namespace, args.service)
        await watch.poll()
        _introduce(args, slo, todo, watch)
        with tqdm(todo, unit="cell", file=sys.stderr, leave=False) as bar:
            for number, cell in enumerate(bar):
                bar.set_description(cell.name)
                results.append(await _measured(args, client, cell, args.seed + number, slo, watch))


def _check(args: argparse.Namespace) -> None:
    """Raises ValueError for flags that contradict each other."""
    report.check(args.json)
    for flag in ("burst", "profile"):
        if getattr(args, flag):
            raise ValueError(f"--matrix and --{flag} cannot be given together")
    if args.concurrency and args.rate:
        raise ValueError("--concurrency and --rate cannot be given together")
    if args.workload != "random":
        raise ValueError(f"--matrix has prompts of its own: --workload {args.workload} cannot be given with it")


def _objectives(args: argparse.Namespace) -> report.LatencyObjectives:
    """Returns objectives from the flags, the running service's manifest, or its defaults. Sets the flags to them."""
    written: Mapping[str, Any] = {}
    with suppress(ServiceUnavailable):
        written = asking.ask(args.namespace, args.service, {"do": "status"})["status"].get("slo", {})
    slo = Slo.model_validate(written)
    args.slo_ttft, args.slo_tpot = args.slo_ttft or slo.ttft, args.slo_tpot or slo.tpot
    if args.cell <= args.slo_ttft:
        raise ValueError(f"--cell must be longer than the objective for the first token ({args.slo_ttft:g} s)")
    return report.LatencyObjectives(args.slo_ttft, args.slo_tpot)


def _cells(args: argparse.Namespace, listed: Sequence[Mapping[str, Any]]) -> list[Cell]:
    model = args.model or str(listed[0]["id"])
    adapters = [str(each["id"]) for each in listed if each.get("parent") == model]
    if args.concurrency:
        arrivals = [Arrivals(concurrency=each) for each in sorted(set(args.concurrency))]
    else:
        arrivals = [Arrivals(rate=each) for each in sorted(set(args.rate or RATES))]
    sizes = args.input_tokens or INPUTS, args.output_tokens or OUTPUTS
    return matrix.cells(*sizes, args.sampling or SAMPLINGS, arrivals, model, adapters)


def _introduce(
    args: argparse.Namespace, slo: report.LatencyObjectives, todo: Sequence[Cell], watch: state_watch.StateWatch
) -> None:
    """Prints the number of cells, the objectives, and the figures that will be missing."""
    say = f"{len(todo)} cells of {durations.text(args.cell)}"
    print(f"{say}; objectives: TTFT {slo.ttft:g} s, TPOT {slo.tpot * 1e3:g} ms", file=sys.stderr)
    if watch.unknown:
        print(f"queue and preemptions are not known: {watch.unknown}", file=sys.stderr)


async def _measured(
    args: argparse.Namespace,
    client: httpx.AsyncClient,
    cell: Cell,
    seed: int,
    slo: report.LatencyObjectives,
    watch: state_watch.StateWatch,
) -> CellResult:
    """Runs a cell. Uncounted requests go first: they wait until the server, too, has finished the previous cell."""
    requests = workload.endless(cell.input_tokens, cell.output_tokens, workload.TokenRange(*args.token_ids), seed)
    until = asyncio.get_running_loop().time() + args.cell
    for _ in range(args.warmup):
        await complete(client, cell.models[0], next(requests), until=until)
    watch.routes.clear()
    ran = await burst.watched(watch, _run(client, cell, requests, args, seed))
    return matrix.judge(cell, ran, slo, None if watch.unknown else watch.routes)


async def _run(
    client: httpx.AsyncClient,
    cell: Cell,
    requests: Iterator[workload.WorkloadRequest],
    args: argparse.Namespace,
    seed: int,
) -> load.LoadRun:
    """Sends requests for `args.cell` seconds, at most `args.requests` of them, and cuts off those that are late."""
    loop = asyncio.get_running_loop()
    models, until = cycle(cell.models), loop.time() + args.cell

    async def send(request: workload.WorkloadRequest) -> Record:
        record = await complete(client, next(models), request, matrix.SAMPLINGS[cell.sampling], until)
        if record.error and cell.arrivals.concurrency:
            await asyncio.sleep(min(AGAIN, max(0.0, until - loop.time())))
        return record

    some = islice(requests, args.requests)
    if cell.arrivals.concurrency:
        return await load.closed(send, takewhile(lambda _: loop.time() < until, some), cell.arrivals.concurrency)
    phase = burst.BurstPhase(cell.arrivals.rate or 1.0, args.cell)
    times = [at for _, at in burst.arrivals([phase], seed)] or [0.0]
    timed = [replace(request, at=at - times[0]) for at, request in zip(times, some, strict=False)]
    return await load.open_loop(send, timed, None, seed)
