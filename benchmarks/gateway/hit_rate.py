"""Measures which share of a chat's prompt tokens is cached where it is computed, with one gateway and with several.

    python benchmarks/gateway/hit_rate.py --gateways 1 2 4

Paced workers and gateways are real processes. Each conversation sends its next turn, the last prompt and `--new`
tokens, once the last one was answered, through a gateway that is drawn at random, as behind a load balancer. All
gateways learn what workers have cached by the same events, but each only predicts what it has sent itself.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import processes

from legato_cli.bench.client import Record, complete
from legato_cli.bench.workload import TokenRange, WorkloadRequest, fixed
from legato_engine.runner import profile as profiles

COMMON = ("--model", processes.MODEL, "--max-length", "8192", "--control-port", "0")
ANSWER = 8  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=48)
    parser.add_argument("--together", type=int, default=12, help="conversations at a time")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--shared", type=int, default=500, help="tokens of a system prompt, of four different ones")
    parser.add_argument("--new", type=int, default=200, help="tokens that each turn adds")
    parser.add_argument("--profile", default="h200-llama-3.1-8b-bf16", help="of the paced workers")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| gateways | prompt tokens cached | of one gateway's | failed |\n| --- | --- | --- | --- |")
    alone = 0.0
    for gateways in args.gateways:
        with tempfile.TemporaryDirectory() as folder, started(args, gateways, Path(folder)) as urls:
            records = asyncio.run(chats(args, urls))
        served = [record for record in records if not record.error]
        rate = sum(record.cached_tokens for record in served) / sum(record.input_tokens for record in served)
        alone = alone or rate
        failed = len(records) - len(served)
        print(f"| {gateways} | {rate:.1%} | {rate / alone:.1%} | {failed} |", flush=True)


@contextlib.contextmanager
def started(args: argparse.Namespace, gateways: int, folder: Path) -> Iterator[list[str]]:
    """The addresses of the gateways, with new workers behind them."""
    profile = folder / "profile.json"
    profile.write_bytes(msgspec.json.encode(msgspec.structs.replace(profiles.find(args.profile), start_seconds=0)))
    paced = ("--role", "unified", "--runner", "paced", "--profile", str(profile), "--health-port", "0")
    with contextlib.ExitStack() as stack:
        workers = []
        for number in range(args.workers):
            name = f"u{number}"
            _, ports = stack.enter_context(processes.legato("worker", "--name", name, *paced, *COMMON))
            workers += ["--worker", f"{name}=127.0.0.1:{ports['control']}"]
        urls = []
        for _ in range(gateways):
            options = ("--port", "0", "--served-name", "m", *workers, *COMMON)
            _, ports = stack.enter_context(processes.legato("gateway", *options))
            urls.append(f"http://127.0.0.1:{ports['http']}")
        yield urls


async def chats(args: argparse.Namespace, urls: list[str]) -> list[Record]:
    """Sends all conversations, and returns the records of all turns."""
    source, records = random.Random(args.seed), list[Record]()
    systems = [request.prompt for request in fixed(4, args.shared, 1, TokenRange(), args.seed)]
    numbers = iter(range(args.conversations))
    async with contextlib.AsyncExitStack() as stack:
        through = [await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120)) for url in urls]
        for gateway in through:
            while (await complete(gateway, "m", WorkloadRequest((1, 2, 3), 1))).error:  # noqa: ASYNC110
                await asyncio.sleep(0.2)

        async def user() -> None:
            for number in numbers:
                prompt = systems[number % len(systems)]
                for new in fixed(args.turns, args.new, 1, TokenRange(), args.seed + 1000 + number):
                    prompt += new.prompt
                    gateway = source.choice(through)
                    records.append(await complete(gateway, "m", WorkloadRequest(prompt, ANSWER)))
                    await asyncio.sleep(source.expovariate(2))

        await asyncio.gather(*(user() for _ in range(args.together)))
    return records


if __name__ == "__main__":
    main()
