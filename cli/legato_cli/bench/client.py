"""One streamed completion, with the arrival time of each part."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

from legato_cli.bench.workload import WorkloadRequest
from legato_protocol import names

GREEDY: Mapping[str, Any] = {"temperature": 0}
_REFUSED = (429, 503)  # too much load: the same request may be admitted later
_REFUSED_LATE = ("overloaded", "rate_limit_exceeded")  # error codes for too much load, inside a stream
_REQUEST_ID = "x-request-id"


@dataclass(slots=True)
class Record:
    """The outcome of one request. Times are seconds on one clock; `arrivals` has one for each chunk with a choice.

    A chunk without text counts as well: its token's character is not complete yet.
    """

    input_tokens: int
    start: float
    arrivals: list[float] = field(default_factory=list)
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""
    refused: str = ""  # drop reason, status or error code, if the server had too much load
    retry_after: float = 0.0  # seconds after which to send a refused request again
    id: str = ""  # given by the server when it begins to answer
    cut: float | None = None  # time of the cut-off, to which the other figures refer

    @property
    def ttft(self) -> float:
        """Seconds to the first token or, without one, to the cut-off."""
        return (self.arrivals[0] if self.arrivals else self.cut or self.start) - self.start

    @property
    def tpot(self) -> float:
        """Mean seconds per output token after the first; 0 for a single token. A lower bound if it was cut off."""
        if not self.arrivals:
            return 0.0
        if self.cut is not None:
            return (self.cut - self.arrivals[0]) / len(self.arrivals)
        return (self.arrivals[-1] - self.arrivals[0]) / max(1, self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies, as a reader of the stream sees them (a chunk may hold several tokens)."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


async def complete(
    client: httpx.AsyncClient,
    model: str,
    request: WorkloadRequest,
    sampling: Mapping[str, Any] = GREEDY,
    until: float | None = None,
) -> Record:
    """Requests exactly `request.output_tokens` tokens and reads the stream to its end, or `until` this loop time."""
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.output_tokens,
        **sampling,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    record = Record(len(request.prompt), perf_counter())
    try:
        async with asyncio.timeout_at(until), client.stream("POST", "/v1/completions", json=body) as response:
            record.id = response.headers.get(_REQUEST_ID, "")
            if response.status_code != 200:
                return await _not_answered(record, response)
            async for data in _events(response):
                _read(record, data)
    except httpx.HTTPError as error:
        record.error = f"{client.base_url}: {str(error) or type(error).__name__}"
    except TimeoutError:
        record.cut, record.output_tokens = perf_counter(), len(record.arrivals)
        return record
    if not record.error and record.output_tokens != request.output_tokens:
        record.error = f"the stream ended after {record.output_tokens} of {request.output_tokens} tokens"
    return record


async def _not_answered(record: Record, response: httpx.Response) -> Record:
    text = (await response.aread()).decode(errors="replace")
    record.error = f"{response.status_code}: {text[:200]}"
    if response.status_code in _REFUSED:
        record.refused = response.headers.get(names.HEADER_DROP_REASON, str(response.status_code))
        record.retry_after = float(response.headers.get("retry-after", 0))
    return record


def _read(record: Record, data: bytes) -> None:
    chunk = json.loads(data)
    if "error" in chunk:
        record.error = str(chunk["error"].get("message", chunk["error"]))
        code = chunk["error"].get("code")
        record.refused = code if code in _REFUSED_LATE else ""
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
