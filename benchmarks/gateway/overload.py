"""Measures a service under more load than it sustains: goodput, time-outs, and the time of refusals.

    python benchmarks/gateway/overload.py -f benchmarks/manifests/overload-paced.yaml --rate 6 --json ../overload.json
    python benchmarks/gateway/overload.py -f benchmarks/manifests/overload.yaml --rate 3 \\
        --vllm-bench 'vllm bench serve --tokenizer FOLDER'

Starts `legato up` once for each policy of `--when-late` and sends an open loop (Poisson) at multiples of `--rate`, the
sustainable rate. Goodput are requests that met the manifest's `slo`, per second of arrivals; a time-out is a request
without an end after `--timeout`. With `--retries`, refused clients send again after `Retry-After`; their TTFT counts
from the attempt that was admitted. `--vllm-bench` sends each load with vLLM's generator instead.
"""

import argparse
import asyncio
import json
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from legato_cli.bench.client import Record, complete
from legato_cli.bench.load import closed, open_loop
from legato_cli.bench.workload import TokenRange, WorkloadRequest, fixed
from legato_operator.api import parsing

HEAD = (
    "| whenLate | × rate | retries | sent/s | goodput/s | admitted that met the slo | refused | time-outs | failed "
    "| refusals p50, p99 | TTFT p50, p99 | TPOT p50, p99 |"
)


@dataclass
class Stage:
    """The outcome of one load. `refusals` are the seconds of each refused attempt."""

    policy: str
    multiple: float
    retries: int
    seconds: float = 0.0  # of arrivals
    sent: int = 0  # attempts
    good: int = 0
    admitted: int = 0
    refused: int = 0  # requests, after all their retries
    timeouts: int = 0
    failed: int = 0
    refusals: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        return self.good / self.seconds

    def row(self) -> str:
        met = f"{self.good / self.admitted:.1%}" if self.admitted else "–"
        times = (_quantiles(each) for each in (self.refusals, self.ttft, self.tpot))
        counts = (self.refused, self.timeouts, self.failed)
        loads = (self.policy, f"{self.multiple:g}", self.retries, f"{self.sent / self.seconds:.2f}")
        return f"| {' | '.join(map(str, (*loads, f'{self.goodput:.2f}', met, *counts, *times)))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-f", "--file", type=Path, required=True, help="the manifest")
    parser.add_argument("--rate", type=float, required=True, help="sustainable requests per second")
    parser.add_argument("--multiples", type=float, nargs="+", default=[0.5, 1.0, 1.5, 2.0, 4.0])
    parser.add_argument("--when-late", nargs="+", choices=("Refuse", "Queue"), default=["Refuse"])
    parser.add_argument("--retries", type=int, nargs="+", default=[0], help="of each refused request")
    parser.add_argument("--input-tokens", type=int, default=400)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals, per load")
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--vllm-bench", help="`vllm bench serve` with its --tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stages: list[Stage] = []
    print(HEAD, "| --- " * HEAD.count(" | ") + "| --- |", sep="\n", flush=True)
    for policy in args.when_late:
        manifest = yaml.safe_load(args.file.read_text())
        manifest["spec"].setdefault("gateway", {})["whenLate"] = policy
        with served(manifest) as url:
            asyncio.run(warmed(args, url))
            for retries in args.retries:
                for multiple in args.multiples:
                    stage = Stage(policy, multiple, retries)
                    measure(args, manifest, url, stage)
                    print(stage.row(), flush=True)
                    stages.append(stage)
    if args.json is not None:
        args.json.write_text(json.dumps([vars(stage) for stage in stages]))


@contextmanager
def served(manifest: dict[str, Any]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe, Path(folder, "log").open("w+") as log:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        path = Path(folder, "manifest.yaml")
        path.write_text(yaml.safe_dump(manifest))
        command = [sys.executable, "-m", "legato_cli.main", "up", "-f", str(path), "--port", str(port)]
        up = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


async def warmed(args: argparse.Namespace, url: str) -> None:
    """Waits until the service answers, and lets its workers measure their steps at several batch sizes."""
    async with client(url) as http:
        for request in fixed(1000, args.input_tokens, 1, TokenRange(), args.seed + 1):
            try:
                if not (await complete(http, await model(http), request)).error:
                    break
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.5)
        for users in (1, 2, 4):
            requests = fixed(4 * users, args.input_tokens, args.output_tokens, TokenRange(), args.seed + 1 + users)
            name = await model(http)
            await closed(lambda request, name=name: complete(http, name, request), requests, users)  # type: ignore[misc]


def measure(args: argparse.Namespace, manifest: dict[str, Any], url: str, stage: Stage) -> None:
    slo = parsing.parse(yaml.safe_dump(manifest)).spec.slo
    rate = args.rate * stage.multiple
    count = round(rate * args.seconds)
    stage.seconds = count / rate
    seed = args.seed + round(1000 * stage.multiple) + 7 * stage.retries
    if args.vllm_bench:
        by_vllm(args, url, stage, count, rate, seed, slo.ttft, slo.tpot)
        return
    requests = fixed(count, args.input_tokens, args.output_tokens, TokenRange(), seed)
    for record in asyncio.run(asked(args, url, stage, requests, rate, seed)):
        if record.cut is not None:
            stage.timeouts += 1
        elif record.refused:
            stage.refused += 1
        elif record.error:
            stage.failed += 1
        else:
            stage.ttft.append(record.ttft)
            stage.tpot.append(record.tpot)
            stage.good += record.ttft <= slo.ttft and record.tpot <= slo.tpot
    stage.admitted = stage.timeouts + stage.failed + len(stage.ttft)


async def asked(
    args: argparse.Namespace, url: str, stage: Stage, requests: list[WorkloadRequest], rate: float, seed: int
) -> list[Record]:
    async with client(url) as http:
        name = await model(http)

        async def send(request: WorkloadRequest) -> Record:
            for attempt in range(stage.retries + 1):
                stage.sent += 1
                began = time.perf_counter()
                until = asyncio.get_running_loop().time() + args.timeout
                record = await complete(http, name, request, until=until)
                if not record.refused:
                    break
                stage.refusals.append(time.perf_counter() - began)
                if attempt < stage.retries:
                    await asyncio.sleep(record.retry_after)
            return record

        return (await open_loop(send, requests, rate, seed)).records


def by_vllm(
    args: argparse.Namespace, url: str, stage: Stage, count: int, rate: float, seed: int, ttft: float, tpot: float
) -> None:
    """Fills the stage by `vllm bench serve`, which knows neither refusals' times nor `Retry-After`."""
    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*shlex.split(args.vllm_bench), "--backend", "openai", "--base-url", url, "--model", name]
        command += ["--endpoint", "/v1/completions", "--dataset-name", "random", "--ignore-eos", "--temperature", "0"]
        command += ["--random-input-len", str(args.input_tokens), "--random-output-len", str(args.output_tokens)]
        command += ["--num-prompts", str(count), "--request-rate", str(rate), "--seed", str(seed), "--save-result"]
        command += ["--save-detailed", "--result-dir", folder, "--result-filename", "result.json"]
        command += ["--goodput", f"ttft:{1e3 * ttft:g}", f"tpot:{1e3 * tpot:g}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads(Path(folder, "result.json").read_text())
    stage.sent, stage.good = count, round(result["request_goodput"] * result["duration"])
    refused = [error for error in result["errors"] if "Unavailable" in error or "503" in error]
    failed = [error for error in result["errors"] if error and error not in refused]
    stage.refused, stage.failed = len(refused), len(failed)
    stage.timeouts = sum("imeout" in error for error in failed)
    stage.admitted = count - stage.refused
    served = [number for number, error in enumerate(result["errors"]) if not error]
    stage.ttft = [result["ttfts"][number] for number in served]
    stage.tpot = [sum(gaps) / max(1, args.output_tokens - 1) for gaps in (result["itls"][n] for n in served)]


def client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=600, limits=limits)


async def model(http: httpx.AsyncClient) -> str:
    return str((await http.get("/v1/models")).json()["data"][0]["id"])


def _quantiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    if not ordered:
        return "–"
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"{1e3 * p50:.0f}, {1e3 * p99:.0f} ms"


if __name__ == "__main__":
    main()
