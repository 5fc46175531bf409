"""Random JSON schemas against a service that is disturbed all the time: every finished answer has to validate.

    PYTHONPATH=tests/support python benchmarks/grammar/structured_random.py --schemas 500 --seed 0

It starts `legato up` with a prefill and two decode workers whose KV cache is too small for all that runs, so that
sequences are preempted. Meanwhile, in slots: a decode worker is killed, one of the two is drained and comes back, so
that its sequences are handed to the other, and the prefill worker is killed. Schemas, sampling and seeds follow from
`--seed`. Printed is how many answers were whole, cut off, invalid and failed, and what happened to them. It exits with
1 if one was invalid or failed. A request under which two workers were killed is given up, as it may be what kills them.
"""

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import psutil
import random_schemas

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import state
from legato_cli.ui import sources
from legato_protocol import names

NAME = "structured-random"
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  model: {{servedName: smollm2, maxLength: 1024, source: {{builtin: smollm2-135m-instruct}}}}
  engine: {{kvCacheMemory: {memory}}}
  scaling: {{mode: External, prefill: {{min: 1, max: 1}}, decode: {{min: 1, max: 2}}}}
"""
MOST = 256  # tokens of an answer
PATIENCE = 120.0  # seconds until a service is ready
Counts = collections.Counter[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--every", type=float, default=10.0, help="seconds from one disturbance to the next")
    parser.add_argument("--memory", default="64Mi", help="KV cache of each worker")
    args = parser.parse_args()
    schemas = random_schemas.supported(args.schemas, args.seed)
    with tempfile.TemporaryDirectory() as folder, _service(Path(folder), args.memory) as (process, url):
        counts = asyncio.run(_run(args, schemas, process, url))
    print("\n".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    sys.exit(1 if counts["invalid"] or counts["failed"] else 0)


@contextlib.contextmanager
def _service(folder: Path, memory: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    file, log = folder / "service.yaml", folder / "up.log"
    file.write_text(MANIFEST.format(name=NAME, memory=memory))
    os.environ["XDG_RUNTIME_DIR"] = str(folder)  # for what asks the service, too
    command = [sys.executable, "-m", "legato_cli.main", "up", "-f", str(file), "--port", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    try:
        yield process, _url(process, log)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def _url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("Ready: "):
                return line.split()[1]
        time.sleep(0.1)
    raise SystemExit(f"the service did not start:\n{log.read_text()[-2000:]}")


async def _run(
    args: argparse.Namespace, schemas: list[dict[str, Any]], process: "subprocess.Popen[bytes]", url: str
) -> Counts:
    await _scale(2)
    counts, slots = Counts(), asyncio.Semaphore(args.concurrency)
    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        others = [asyncio.create_task(_disturb(args.every, process, counts)), asyncio.create_task(_watch(counts))]
        try:
            await asyncio.gather(*(_ask(http, slots, counts, args.seed + i, each) for i, each in enumerate(schemas)))
            for task in others:
                if task.done():
                    task.result()  # raises what ended it
        finally:
            for task in others:
                task.cancel()
    counts["seconds"] = round(time.perf_counter() - began)
    return counts


async def _ask(
    http: httpx.AsyncClient, slots: asyncio.Semaphore, counts: Counts, seed: int, schema: dict[str, Any]
) -> None:
    """One answer, sampled or greedy."""
    body = {
        "prompt": f"JSON of the schema {json.dumps(schema)[:600]}:\n",
        "structured_outputs": {"json": schema},
        "max_tokens": MOST,
        "temperature": random.Random(seed).choice([0.0, 0.7, 1.0]),
        "seed": seed,
    }
    async with slots:
        answer = await http.post("/v1/completions", json=body, headers={names.HEADER_EXPLAIN: "true"})
    if answer.status_code != 200 and answer.json()["error"]["code"] == "suspected_poison":
        counts["given up, since two workers were killed under them"] += 1
        return
    if answer.status_code != 200:
        counts["failed"] += 1
        print(f"failed, seed {seed}: {answer.text[:300]}", flush=True)
        return
    route, (choice,) = json.loads(answer.headers[names.HEADER_ROUTE]), answer.json()["choices"]
    counts["answers that other workers went on with"] += route["attempt"] > 1
    counts["of these with their KV"] += len(route["handoffs"]) > 1
    if choice["finish_reason"] != "stop":
        counts["cut off"] += 1
        return
    try:
        random_schemas.check(schema, choice["text"])
        counts["whole"] += 1
    except (ValueError, jsonschema.ValidationError) as error:
        counts["invalid"] += 1
        print(f"invalid, seed {seed}: {schema} {choice['text']!r} {error}", flush=True)


async def _disturb(every: float, process: "subprocess.Popen[bytes]", counts: Counts) -> None:
    for what in itertools.cycle(("decode", "drain", "prefill")):
        await asyncio.sleep(every)
        if what == "drain":
            await _scale(1)
            await _scale(2)
        else:
            workers = [worker["worker"] for worker in await _workers() if worker.get("role") == what]
            if not workers:
                continue
            _kill(process, workers[0])
        counts[f"{what}s" if what == "drain" else f"kills of a {what} worker"] += 1


async def _scale(replicas: int) -> None:
    """Until the pool of decode workers has that many, all connected."""
    scaling = [sys.executable, "-m", "legato_cli.main", "scale", "decode", str(replicas)]
    asked = await asyncio.create_subprocess_exec(*scaling, stdout=subprocess.DEVNULL)
    if await asked.wait():
        raise SystemExit(f"{' '.join(scaling)} failed")
    while True:
        there = [worker for worker in await _workers() if worker.get("role") == "decode"]
        if len(there) == replicas and all(worker["connection"] == "connected" for worker in there):
            return
        await asyncio.sleep(0.2)


def _kill(process: "subprocess.Popen[bytes]", name: str) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = child.cmdline()
            if "worker" in line and name in line:
                child.kill()


async def _watch(counts: Counts) -> None:
    """Counts preemptions, except in the last moments of a killed worker."""
    seen: dict[str, int] = {}
    while True:
        with contextlib.suppress(ServiceUnavailable):  # the gateway had no time to answer
            workers = {
                worker["epoch"]: worker.get("preemptions", 0) for worker in await _workers() if "epoch" in worker
            }
            seen |= {epoch: max(count, seen.get(epoch, 0)) for epoch, count in workers.items()}
        counts["preemptions"] = sum(seen.values())
        await asyncio.sleep(0.5)


async def _workers() -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = (await state.read(sources.source(None, None)))[0]["workers"]
    return workers


if __name__ == "__main__":
    main()
