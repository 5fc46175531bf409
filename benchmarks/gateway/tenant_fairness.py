"""Measures a tenant's time to first token while another one floods the service with long prompts.

    python benchmarks/gateway/tenant_fairness.py --seconds 20

A prefill and a decode worker, paced, and two gateways are real processes; tenants are distinguished by API keys. The
light tenant asks now and then, at the first gateway. It does so without others, then during a flood through the same
gateway, through the other one, and through both. Printed: its TTFT, and the ratio to the undisturbed TTFT. Then both
tenants ask for as much as they can get, one with four times as many concurrent requests: the share of the prompt tokens
that the other one gets is to be half, through one gateway as through two.
"""

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec
import processes

from legato_cli.bench.client import Record, complete
from legato_cli.bench.load import open_loop
from legato_cli.bench.workload import TokenRange, fixed
from legato_engine.runner import profile as profiles
from legato_gateway.clients import api_keys

LIGHT, FLOOD = "light", "flood"
KEYS = {tenant: secrets.token_urlsafe() for tenant in (LIGHT, FLOOD)}
COMMON = ("--model", processes.MODEL, "--max-length", "8192", "--control-port", "0")
ANSWER = 8  # tokens
TOKENS = TokenRange()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--rate", type=float, default=2.0, help="of the light tenant's requests, a second")
    parser.add_argument("--light-tokens", type=int, default=1500, help="prompt tokens of its requests")
    parser.add_argument("--flood-tokens", type=int, default=6000)
    parser.add_argument("--flood-requests", type=int, default=16, help="concurrent requests of the flood")
    parser.add_argument("--profile", default="h200-llama-3.1-8b-bf16", help="of the paced workers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started(args, Path(folder)) as urls:
        asyncio.run(measure(args, urls))


@contextlib.contextmanager
def started(args: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """The addresses of two gateways, with a prefill and a decode worker behind them."""
    profile = folder / "profile.json"
    profile.write_bytes(msgspec.json.encode(msgspec.structs.replace(profiles.find(args.profile), start_seconds=0)))
    keys = folder / "api-keys.json"
    keys.write_text(json.dumps({"tenants": {t: {"keys": [api_keys.digest(key)]} for t, key in KEYS.items()}}))
    with contextlib.ExitStack() as stack:
        workers = []
        for role in ("prefill", "decode"):
            options = ["--role", role, "--name", role, "--runner", "paced", "--profile", str(profile)]
            _, ports = stack.enter_context(processes.legato("worker", *options, "--health-port", "0", *COMMON))
            workers += ["--worker", f"{role}=127.0.0.1:{ports['control']}"]
        urls = []
        for _ in range(2):
            options = ["--port", "0", "--served-name", "m", "--api-keys-file", str(keys), *workers]
            _, ports = stack.enter_context(processes.legato("gateway", *options, *COMMON))
            urls.append(f"http://127.0.0.1:{ports['http']}")
        yield urls


async def measure(args: argparse.Namespace, urls: list[str]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        light = [await stack.enter_async_context(client(url, LIGHT)) for url in urls]
        flood = [await stack.enter_async_context(client(url, FLOOD)) for url in urls]
        for each in (*light, *flood):
            await until_served(each)
        print(
            "| TTFT of the light tenant | p50, ms | p99, ms | ratio of p99 | failed |\n| --- | --- | --- | --- | --- |"
        )
        alone = 0.0
        phases = {
            "alone": [],
            "flood, same gateway": flood[:1],
            "flood, other gateway": flood[1:],
            "flood, both": flood,
        }
        for name, through in phases.items():
            async with flooding(args, through):
                records = await asked(args, light[0])
            times = sorted(1e3 * record.ttft for record in records if not record.error)
            p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
            alone = alone or p99
            print(f"| {name} | {p50:.0f} | {p99:.0f} | {p99 / alone:.2f} | {len(records) - len(times)} |", flush=True)
        print("\n| both ask for all they can get | part of the tenant with a quarter of the requests |\n| --- | --- |")
        for name, second in (("one gateway", light[0]), ("two gateways", light[1])):
            print(f"| {name} | {await shared(args, flood[0], second):.0%} |", flush=True)


@contextlib.asynccontextmanager
async def client(url: str, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, headers=headers) as client:
        yield client


async def until_served(each: httpx.AsyncClient) -> None:
    """Both workers are known, and have computed."""
    for request in fixed(4, 600, ANSWER, TOKENS, secrets.randbits(30)):
        while (record := await complete(each, "m", request)).error:
            print(f"not yet: {record.error}", file=sys.stderr)
            await asyncio.sleep(0.5)


async def asked(args: argparse.Namespace, by: httpx.AsyncClient) -> list[Record]:
    """Sends the light tenant's requests of one phase."""
    count = round(args.rate * args.seconds)
    requests = fixed(count, args.light_tokens, ANSWER, TOKENS, secrets.randbits(30))
    run = await open_loop(lambda request: complete(by, "m", request), requests, args.rate, seed=1)
    return run.records


@contextlib.asynccontextmanager
async def flooding(args: argparse.Namespace, through: list[httpx.AsyncClient]) -> AsyncIterator[list[Record]]:
    """Keeps `requests` long prompts in flight, `through` one or several gateways, until it is cancelled."""
    done: list[Record] = []
    users = [through[number % len(through)] for number in range(args.flood_requests)] if through else []
    tasks = [asyncio.create_task(_repeat(user, args.flood_tokens, done)) for user in users]
    if tasks:
        await asyncio.sleep(2)  # its queues fill
    try:
        yield done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _repeat(user: httpx.AsyncClient, tokens: int, done: list[Record]) -> None:
    while True:
        (request,) = fixed(1, tokens, ANSWER, TOKENS, secrets.randbits(30))
        done.append(await complete(user, "m", request))


async def shared(args: argparse.Namespace, many: httpx.AsyncClient, few: httpx.AsyncClient) -> float:
    """Returns the share of the prompt tokens that the one of two greedy tenants with fewer requests gets."""
    fewer = argparse.Namespace(**vars(args) | {"flood_requests": args.flood_requests // 4})
    async with flooding(args, [many]) as first, flooding(fewer, [few]) as second:
        first.clear()
        second.clear()
        await asyncio.sleep(args.seconds)
        mine, others = (sum(r.input_tokens for r in done if not r.error) for done in (second, first))
    return mine / (mine + others)


if __name__ == "__main__":
    main()
