"""One streamed completion, and when each part of it came."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter

import httpx

from legato_cli.bench.workload import WorkloadRequest


@dataclass(slots=True)
class Record:
    """What became of one request. Times are seconds on one clock; `arrivals` are those of chunks with a choice.

    A chunk without text counts too: it brings a token whose character is not complete yet.
    """

    input_tokens: int
    start: float
    arrivals: list[float] = field(default_factory=list)
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.start

    @property
    def tpot(self) -> float:
        """Mean seconds per output token after the first; 0 for a single token."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(1, self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies, as a reader of the stream sees them (a chunk may hold several tokens)."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


async def complete(client: httpx.AsyncClient, model: str, request: WorkloadRequest) -> Record:
    """Asks for exactly `request.output_tokens` tokens, greedily, and reads the stream to its end."""
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    record = Record(len(request.prompt), perf_counter())
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                record.error = f"{response.status_code}: {text[:200]}"
                return record
            async for data in _events(response):
                _read(record, data)
    except httpx.HTTPError as error:
        record.error = f"{client.base_url}: {str(error) or type(error).__name__}"
    if not record.error and record.output_tokens != request.output_tokens:
        record.error = f"the stream ended after {record.output_tokens} of {request.output_tokens} tokens"
    return record


def _read(record: Record, data: bytes) -> None:
    chunk = json.loads(data)
    if "error" in chunk:
        record.error = str(chunk["error"].get("message", chunk["error"]))
    if chunk.get("choices"):
        record.arrivals.append(perf_counter())
    if usage := chunk.get("usage"):
        record.output_tokens = usage["completion_tokens"]
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield line[6:]
