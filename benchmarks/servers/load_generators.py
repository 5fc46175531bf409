"""Load generators of `compare.py`: `legato bench` and, from vLLM, `vllm bench serve`."""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

METRICS = ("out tok/s", "TTFT p50", "TPOT p50")
Figures = dict[str, float]  # by metric; times in milliseconds


@dataclass(frozen=True)
class Shape:
    """Tokens of each request: `input_tokens`, of which the first `prefix_tokens` are one of `prefixes` common ones."""

    input_tokens: int
    output_tokens: int
    prefixes: int = 0
    prefix_tokens: int = 0

    def __str__(self) -> str:
        inputs = f"{self.input_tokens}"
        if self.prefixes:
            inputs = f"{self.prefixes}x{self.prefix_tokens}+{self.input_tokens - self.prefix_tokens}"
        return f"{inputs}/{self.output_tokens}"


@dataclass(frozen=True)
class Load:
    """`requests` of one shape, `concurrency` at a time. The prompts follow from the seed."""

    shape: Shape
    concurrency: int
    requests: int
    seed: int


Generator = Callable[[str, Load], Figures | None]


def shape(text: str) -> Shape:
    """`256/64`: input and output tokens; `4x512+64/32`: inputs of 512 tokens, one of 4 prefixes, and 64 of their own.

    Raises ValueError.
    """
    try:
        inputs, outputs = text.split("/")
        if "x" not in inputs:
            return Shape(int(inputs), int(outputs))
        prefixes, lengths = inputs.split("x")
        prefix, own = map(int, lengths.split("+"))
        return Shape(prefix + own, int(outputs), int(prefixes), prefix)
    except ValueError:
        raise ValueError(f"not a shape: {text} (such as 256/64, or 4x512+64/32 with prefixes)") from None


def legato_bench(url: str, load: Load) -> Figures | None:
    """Returns the figures of `legato bench`; None if requests failed, for example because the server died."""
    asked = load.shape
    command = [sys.executable, "-m", "legato_cli.main", "bench", "--url", url, "--warmup", "0"]
    command += ["--input-tokens", str(asked.input_tokens), "--output-tokens", str(asked.output_tokens)]
    command += ["--concurrency", str(load.concurrency), "--requests", str(load.requests), "--seed", str(load.seed)]
    if asked.prefixes:
        command += ["--workload", "shared-prefix", "--prefixes", str(asked.prefixes)]
        command += ["--prefix-share", str(asked.prefix_tokens / asked.input_tokens)]
    with tempfile.TemporaryDirectory() as folder:
        figures = _run([*command, "--json", f"{folder}/figures.json"], Path(folder, "figures.json"))
    if figures is None:
        return None
    (measured,) = figures["loads"]
    if _some_failed(measured["failed"], load):
        return None
    speed, ttft, tpot = measured["output_tokens_per_second"], measured["ttft_ms"]["p50"], measured["tpot_ms"]["p50"]
    return dict(zip(METRICS, (speed, ttft, tpot), strict=True))


def vllm_bench(program: str) -> Generator:
    """`program` is the command up to `bench serve`, with `--tokenizer` behind it where the served name is none."""

    def measure(url: str, load: Load) -> Figures | None:
        asked = load.shape
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        command = [*shlex.split(program), "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"]
        command += ["--model", model]
        command += ["--max-concurrency", str(load.concurrency), "--num-prompts", str(load.requests)]
        command += ["--seed", str(load.seed), "--ignore-eos", "--temperature", "0", "--save-result"]
        if asked.prefixes:
            command += ["--dataset-name", "prefix_repetition"]
            command += ["--prefix-repetition-num-prefixes", str(asked.prefixes)]
            command += ["--prefix-repetition-prefix-len", str(asked.prefix_tokens)]
            command += ["--prefix-repetition-suffix-len", str(asked.input_tokens - asked.prefix_tokens)]
            command += ["--prefix-repetition-output-len", str(asked.output_tokens)]
        else:
            command += ["--dataset-name", "random", "--random-input-len", str(asked.input_tokens)]
            command += ["--random-output-len", str(asked.output_tokens)]
        with tempfile.TemporaryDirectory() as folder:
            command += ["--result-dir", folder, "--result-filename", "figures.json"]
            figures = _run(command, Path(folder, "figures.json"))
        if figures is None or _some_failed(load.requests - figures["completed"], load):
            return None
        values = (figures["output_throughput"], figures["median_ttft_ms"], figures["median_tpot_ms"])
        return dict(zip(METRICS, values, strict=True))

    return measure


def _some_failed(failed: int, load: Load) -> bool:
    """Reports failed requests: figures of the others would be better than the server."""
    if failed:
        print(f"{failed} of {load.requests} requests failed, so their cell has no figures", file=sys.stderr)
    return failed > 0


def _run(command: list[str], result: Path) -> dict[str, Any] | None:
    """Returns the JSON that the command wrote to `result`; None without one."""
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not result.exists() or not (text := result.read_text()):
        print(f"{shlex.join(command[:4])} … ended with {ended.returncode}: {ended.stderr[-500:]}", file=sys.stderr)
        return None
    figures: dict[str, Any] = json.loads(text)
    return figures
