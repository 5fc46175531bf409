"""Measures the cost of large, useless request bodies: the gateway's answer, its memory, and another client's wait.

    PYTHONPATH=tests/support .venv/bin/python benchmarks/gateway/bodies.py --size 8300000

The gateway is a real process with a scripted worker behind it. While a body is sent and answered, another client asks
for one token after the other, each on a connection of its own. Printed for each shape: status, seconds until the
answer, the gateway's peak RSS from then on, and the longest that the other client waited for a first token.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass

import large_bodies
import processes
from processes import COMPLETIONS, completion, post


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8_300_000, help="bytes of each body (8300000)")
    parser.add_argument("--concurrency", type=int, default=1, help="of each shape (1)")
    parser.add_argument("--shape", action="append", default=[], help="only this one; may be given several times")
    parser.add_argument("--max-length", type=int, default=4096, help="the model's context (4096)")
    parser.add_argument("--model", default=processes.MODEL)
    args = parser.parse_args()
    with processes.worker("--model", args.model) as (_, addresses):
        for name in args.shape or large_bodies.SHAPES:
            path, body = large_bodies.body(name, args.size)
            length = ("--max-length", str(args.max_length))
            with processes.gateway(addresses, args.model, *length) as (gateway, ports):
                figures = asyncio.run(_shape(gateway.pid, ports["http"], path, body, args.concurrency))
                died = "" if gateway.poll() is None else "; THE GATEWAY DIED"
                print(f"{name:40s} {figures}{died}", flush=True)


@dataclass
class Found:
    statuses: list[str]
    seconds: float
    before: int
    peak: int
    waits: list[float]

    def __str__(self) -> str:
        statuses = " ".join(sorted(set(self.statuses)))
        memory = f"RSS {self.before >> 20:4d} MiB, peak {self.peak >> 20:5d} MiB"
        return f"{statuses}  {self.seconds:7.2f} s  {memory}  others waited {max(self.waits):6.2f} s at most"


async def _shape(gateway: int, port: int, path: str, body: bytes, count: int) -> Found:
    await processes.until_served(port)
    before = processes.memory(gateway)
    processes.forget_peak(gateway)
    start = time.perf_counter()
    sent = [asyncio.create_task(post(port, path, body)) for _ in range(count)]
    waits = [(await post(port, COMPLETIONS, completion(1)))[1]]
    while not all(task.done() for task in sent):
        waits.append((await post(port, COMPLETIONS, completion(1)))[1])
    answers = [await task for task in sent]
    statuses = [answer[9:12].decode() or "no answer" for answer, _ in answers]
    return Found(statuses, time.perf_counter() - start, before, processes.memory(gateway, "VmHWM"), waits)


if __name__ == "__main__":
    main()
