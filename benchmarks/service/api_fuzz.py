"""Random requests for every path of a running service's API: no fault of the server, no hang, and blocks free again.

    legato up -f benchmarks/manifests/disaggregated.yaml --port 8080
    PYTHONPATH=tests/support python benchmarks/service/api_fuzz.py http://127.0.0.1:8080 --requests 20000

Requests are made from `/openapi.json`, the same ones for the same seed. Printed are the statuses of each path. It exits
with 1 if an answer was a 5xx, a stream failed, nothing came for two minutes, or blocks were not free again at the end.
Nothing else may use the service meanwhile.
"""

import argparse
import asyncio
import sys
from time import perf_counter
from typing import Any

import httpx
import random_requests

from legato_cli.services import state
from legato_cli.ui import sources

LOOK = 0.1  # seconds between looks
PATIENCE = 60.0  # seconds until all blocks have to be free


async def until_free() -> None:
    """Until no worker holds a block for anybody, and all blocks are accounted for. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE):
        while True:
            workers = (await state.read(sources.source(None, None)))[0]["workers"]
            if all(map(_free, workers)):
                return
            await asyncio.sleep(LOOK)


def _free(worker: dict[str, Any]) -> bool:
    blocks = [worker.get(f"{kind}_blocks", -1) for kind in ("free", "cached", "used", "quarantined")]
    busy = any(worker.get(what, 1) for what in ("running", "waiting", "used_blocks", "quarantined_blocks"))
    return not busy and sum(blocks) == worker["total_blocks"]


async def fuzz(args: argparse.Namespace) -> list[str]:
    """Returns the faults."""
    async with httpx.AsyncClient(base_url=args.url, timeout=None) as http:
        api = (await http.get("/openapi.json")).raise_for_status().json()
        model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        began = perf_counter()
        requests = random_requests.Fuzz(api, model, args.seed).requests(args.requests)
        answers = await random_requests.run(http, requests, args.concurrency, args.paced)
        seconds = perf_counter() - began
    for path, counts in sorted(answers.statuses.items()):
        print(f"| `{path}` | {', '.join(f'{count} × {status}' for status, count in sorted(counts.items()))} |")
    print(f"{args.requests} requests in {seconds:.0f} s, {len(answers.faults)} faults", flush=True)
    await until_free()
    print("all blocks are free again")
    return answers.faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--paced", action="store_true", help="workers are paced: they refuse grammars with a 503")
    parser.add_argument("--seed", type=int, default=1)
    faults = asyncio.run(fuzz(parser.parse_args()))
    print("\n".join(faults[:20]))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
