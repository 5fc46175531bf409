"""Measures the cost of long prompts for running streams: time per output token without and during a series of prompts.

    legato up -f benchmarks/manifests/unified-long.yaml --port 8080
    python benchmarks/service/tpot.py http://127.0.0.1:8080 --slo-tpot 100ms

Streams follow each other too, `--streams` at a time, as long as there are prompts; those that the end of the prompts
cut into do not count. `tpot` is a stream's mean time per token after the first, `gap` the time between two of its
tokens. The promise is a TPOT p99 during prompts of at most 1.5 × the objective, which is the manifest's `slo.tpot`.
"""

import argparse
import asyncio
import random
from collections.abc import Iterator

import httpx

from legato_cli.bench import client, load, workload
from legato_cli.bench.client import Record
from legato_protocol.settings import flags

LIMIT = 1.5  # times the objective: the promise


async def measure(args: argparse.Namespace) -> None:
    """Prints a row for undisturbed streams and one for streams during prompts."""
    seed = random.SystemRandom().getrandbits(32)  # no prompt may be cached by an earlier run
    long = workload.fixed(args.prompts + 1, args.prompt_tokens, 2, workload.TokenRange(), seed)
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]

        async def send(request: workload.WorkloadRequest) -> Record:
            record = await client.complete(http, model, request)
            if record.error:
                raise SystemExit(record.error)
            return record

        await send(long[0])
        await load.closed(send, _streams(args, seed + 1, args.streams), args.streams)  # warms up, as the line before
        alone = await load.closed(send, _streams(args, seed + 2, 2 * args.streams), args.streams)
        print(_row("undisturbed", alone.records, args.slo_tpot), flush=True)
        prompts = asyncio.ensure_future(load.closed(send, long[1:], 1))
        disturbed = await load.closed(send, _until(prompts, _streams(args, seed + 3, 10**6)), args.streams)
    answered = (await prompts).records
    end = answered[-1].arrivals[-1]
    whole = [record for record in disturbed.records if record.arrivals[-1] <= end]
    if not whole:
        raise SystemExit("no stream ended while there were prompts: ask for more --prompts, or fewer --output-tokens")
    print(_row(f"during prompts of {args.prompt_tokens} tokens", whole, args.slo_tpot))
    waits = sorted(record.ttft for record in answered)
    print(f"{len(waits)} prompts, time to first token: p50 {waits[len(waits) // 2]:.1f} s, max {waits[-1]:.1f} s")


def _streams(args: argparse.Namespace, seed: int, count: int) -> Iterator[workload.WorkloadRequest]:
    return (
        workload.fixed(1, args.input_tokens, args.output_tokens, workload.TokenRange(), seed + number)[0]
        for number in range(0, count * 1000, 1000)
    )


def _until(
    over: "asyncio.Future[load.LoadRun]", requests: Iterator[workload.WorkloadRequest]
) -> Iterator[workload.WorkloadRequest]:
    for request in requests:
        if over.done():
            return
        yield request


def _row(case: str, records: list[Record], slo: float) -> str:
    tpots, gaps = sorted(r.tpot for r in records), sorted(gap for r in records for gap in r.gaps)
    p99 = _percentile(tpots, 99)
    figures = [_percentile(tpots, 50), p99, _percentile(gaps, 50), _percentile(gaps, 99), gaps[-1]]
    cells = " | ".join(f"{1e3 * figure:.0f}" for figure in figures)
    verdict = "kept" if p99 <= LIMIT * slo else "missed"
    return f"| {case} | {len(records)} | {cells} | {p99 / slo:.2f}: {verdict} |"


def _percentile(ordered: list[float], p: int) -> float:
    return ordered[max(0, -(-len(ordered) * p // 100) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    flags.option(parser, "--slo-tpot", kind=flags.DURATION, default=0.1, help="the manifest's slo.tpot")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--input-tokens", type=int, default=64, help="of a stream")
    parser.add_argument("--output-tokens", type=int, default=128, help="of a stream")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    args = parser.parse_args()
    print("| streams | number | tpot p50, ms | p99 | gap p50, ms | p99 | max | tpot p99 ÷ objective |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
