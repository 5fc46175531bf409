"""Measures the cost of the prefill → decode boundary: times of hand-offs of a running disaggregated service.

    legato up -f benchmarks/manifests/disaggregated.yaml --port 8080
    python benchmarks/service/boundary.py http://127.0.0.1:8080 --input-tokens 256 --requests 100

`boundary` runs from the sender's last message to the emission of the first token by the decode worker: the time that
a client's first token waits because prefill and decode are apart. `handoff` runs from grant to commit, most of it
while the prompt is still being computed. Every run has new prompts: earlier ones would be in the cache.
"""

import argparse
import asyncio
import time

import httpx

from legato_cli.bench import client, load, workload
from legato_cli.services import state
from legato_cli.ui import sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--service", help="name of the service, if several run on this machine")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the prompts (default: new ones)")
    args = parser.parse_args()
    handoffs = asyncio.run(measure(args))
    print("| figure | p50 | p99 |\n| --- | --- | --- |")
    for name, key in (("boundary, ms", "boundary_seconds"), ("handoff, ms", "seconds")):
        values = sorted(1e3 * float(handoff[key]) for handoff in handoffs)
        print(f"| {name} | {values[len(values) // 2]:.2f} | {values[int(len(values) * 0.99)]:.2f} |")
    sizes = sorted(int(handoff["bytes"]) for handoff in handoffs)
    print(f"{len(handoffs)} hand-offs by {handoffs[0]['transport']}, {sizes[len(sizes) // 2] / 2**20:.1f} MiB each")


async def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """The hand-offs of the requests asked here, from the gateway's state (which keeps the last 256)."""
    count, shape = min(args.requests, 256), (args.input_tokens, args.output_tokens)
    requests = workload.fixed(count, *shape, workload.TokenRange(), args.seed)
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        for warm in workload.fixed(3, *shape, workload.TokenRange(), args.seed + 1):
            await client.complete(http, model, warm)
        known = {record["id"] for record in (await state.read(sources.source(None, args.service)))[0]["requests"]}
        run = await load.closed(lambda request: client.complete(http, model, request), requests, args.concurrency)
        if failed := [record.error for record in run.records if record.error]:
            raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
        records = (await state.read(sources.source(None, args.service)))[0]["requests"]
    return [handoff for record in records if record["id"] not in known for handoff in record["handoffs"]]


if __name__ == "__main__":
    main()
