"""Runs a prepared request and sends its answer, streamed or whole.

`StreamPolicy` says whether a stream starts at admission or with the first token. Earlier failures get an HTTP status of
their own. When the client disconnects, all work for it is cancelled immediately.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legato_gateway import access_log
from legato_gateway.access_log import ENTRY, SPAN, AccessEntry
from legato_gateway.errors import DeadlineExceeded, GatewayError, InternalFault
from legato_gateway.request import Delta, Generation, Relay, RouteRecord, Usage
from legato_gateway.serving import ignored
from legato_gateway.serving.disconnect import disconnected
from legato_gateway.serving.event_stream import EventStream, StreamPolicy
from legato_gateway.serving.prepared_request import CollectedChoice, PreparedRequest, Writer
from legato_protocol import names

MAX_EXPLAINED = 8  # routes in one header: clients accept few kilobytes of headers


Batch = list[tuple[int, Delta]]  # (index of the choice over all prompts, its news)


class GenerationResponse(Response):
    """Runs `prepared` when the response is sent."""

    def __init__(self, prepared: PreparedRequest, relay: Relay, policy: StreamPolicy) -> None:
        super().__init__()
        self._policy = policy
        self._prepared = prepared
        self._relay = relay
        self._generations: list[Generation] = []
        self._written: tuple[float, float] | None = None  # times of the first and the latest token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ignored = ignored.header(scope)
        self._generations = [self._relay.submit(request) for request in self._prepared.requests]
        run = asyncio.create_task(self._stream(scope, send) if self._prepared.stream else self._whole(send))
        leaving = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((run, leaving), return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                await run
        finally:
            run.cancel()
            leaving.cancel()
            await asyncio.gather(*(generation.cancel() for generation in self._generations))
            await asyncio.gather(run, leaving, return_exceptions=True)
            routes = [generation.route for generation in self._generations]
            slowest = max(routes, key=lambda route: route.seconds.get("total", 0.0)).seconds
            if (per_token := self._client_tpot()) is not None:
                slowest["client_tpot"] = per_token
                if (span := scope.get(SPAN)) is not None:
                    span.set({"legato.latency.client_time_per_output_token": per_token})
            if (entry := scope.get(ENTRY)) is not None:
                self._describe(entry, routes, slowest)

    def _describe(self, entry: AccessEntry, routes: Sequence[RouteRecord], slowest: Mapping[str, float]) -> None:
        usage = self._usage()
        entry.id, entry.model = self._prepared.id, self._prepared.model
        entry.prompt_tokens, entry.output_tokens = usage.prompt_tokens, usage.completion_tokens
        entry.cached_tokens = usage.cached_tokens
        entry.finish = ",".join(route.finish for route in routes if route.finish) or None
        first = [route.seconds["first_token"] for route in routes if "first_token" in route.seconds]
        entry.first_token_seconds = round(min(first), 6) if first else None
        entry.attempts = max((route.attempt for route in routes), default=0) or None
        entry.preemptions = sum(route.preemptions for route in routes) or None
        for part in ("queue", "prefill", "handoff", "decode", "tpot", "client_tpot"):
            if part in slowest:
                setattr(entry, f"{part}_seconds", round(slowest[part], 6))
        entry.kv_blocks_reserved = sum(route.kv_blocks_reserved for route in routes) or None
        entry.kv_blocks_peak = sum(route.kv_blocks_peak for route in routes) or None

    def _client_tpot(self) -> float | None:
        """Mean seconds between a stream's tokens as written, assuming that its choices advance together."""
        tokens = self._usage().completion_tokens / sum(request.choices for request in self._prepared.requests)
        if self._written is None or self._written[0] == self._written[1] or tokens <= 1:  # all in one write
            return None
        return (self._written[1] - self._written[0]) / (tokens - 1)

    async def _whole(self, send: Send) -> None:
        answers: dict[int, CollectedChoice] = {}
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                for index, delta in batch:
                    answer = answers.setdefault(index, CollectedChoice(index))
                    answer.text.append(delta.text)
                    answer.tokens += delta.tokens
                    answer.token_ids += delta.token_ids
                    answer.finish = delta.finish or answer.finish
                    answer.stop = delta.stop or answer.stop
                    answer.stop_token = delta.stop_token if delta.finish else answer.stop_token
                    answer.scores = delta.scores or answer.scores
                    answer.late = delta.late
        collected = [answers[index] for index in sorted(answers)]
        if self._prepared.choose is not None:
            collected = self._prepared.choose(collected)
        write = partial(self._prepared.writer.whole, collected, self._usage())
        body = await _off_loop(write, any(answer.scores for answer in collected))
        length = (b"content-length", b"%d" % len(body))
        await self._begin(send, [(b"content-type", b"application/json"), length])
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, scope: Scope, send: Send) -> None:
        writer = self._prepared.writer
        events = EventStream(send, lambda: self._begin(send, _STREAM_HEADERS), writer.begin)
        keeping = asyncio.create_task(self._keep(events))
        try:
            async with aclosing(self._batches()) as batches:
                async for batch in batches:
                    write = partial(_joined, writer, batch)
                    if said := await _off_loop(write, any(delta.scores for _, delta in batch)):
                        await events.write(said)
                        now = asyncio.get_running_loop().time()
                        self._written = (self._written[0] if self._written else now, now)
            last = writer.end(self._usage())
        except GatewayError as error:
            if not events.started:
                raise
            access_log.note_refusal(scope, error)
            last = writer.failed(error)
        except Exception:
            if events.started:  # the server only logs the exception: the client needs an event
                fault = InternalFault("the gateway failed while streaming this answer")
                await events.write(writer.failed(fault), last=True)
            raise
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        await events.write(last, last=True)

    async def _keep(self, events: EventStream) -> None:
        """Starts the response when the whole request is admitted, and keeps it from being silent."""
        seconds = self._policy.keep_alive
        if self._policy.at_admission and not self._prepared.explain:  # its route is not known before the first token
            try:
                async with asyncio.timeout(seconds or None):
                    if not all([await generation.wait_admitted() for generation in self._generations]):
                        return
            except TimeoutError:
                pass  # nor may the connection be silent while it is queued
            await events.begin()
        else:
            await events.wait_started()
        await events.keep_alive(seconds)

    async def _begin(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        own = [(self._prepared.id_header, self._prepared.id.encode())]
        if self._ignored:
            own.append((names.HEADER_IGNORED.encode(), self._ignored.encode()))
        if self._prepared.explain:
            own.append((names.HEADER_ROUTE.encode(), self._routes().encode()))
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *own]})

    def _routes(self) -> str:
        """Returns the route as compact JSON; for several prompts, a list of the first few."""
        records = [asdict(generation.route) for generation in self._generations[:MAX_EXPLAINED]]
        return json.dumps(records[0] if len(self._generations) == 1 else records, separators=(",", ":"))

    def _usage(self) -> Usage:
        total = Usage()
        for generation in self._generations:
            total.prompt_tokens += generation.usage.prompt_tokens
            total.completion_tokens += generation.usage.completion_tokens
            total.cached_tokens += generation.usage.cached_tokens
            if (reasoning := generation.usage.reasoning_tokens) is not None:
                total.reasoning_tokens = (total.reasoning_tokens or 0) + reasoning
        return total

    def _batches(self) -> AsyncGenerator[Batch, None]:
        if len(self._generations) == 1:
            return one(self._generations[0], 0)
        return merged(self._generations, self._prepared.requests[0].choices)


_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects events defeats streaming
)


def _joined(writer: Writer, batch: Batch) -> bytes:
    return b"".join([writer.delta(index, delta) for index, delta in batch])


async def _off_loop(write: Callable[[], bytes], long: bool) -> bytes:
    """Calls `write`, in a thread if it is `long`: logprobs of a whole prompt would stall other streams."""
    return await asyncio.to_thread(write) if long else write()


async def one(generation: Generation, first_choice: int) -> AsyncGenerator[Batch, None]:
    """Yields all deltas of one prompt that are ready at a time."""
    async for delta in generation:
        batch = [(first_choice + delta.choice, delta)]
        batch += [(first_choice + more.choice, more) for more in generation.ready()]
        yield batch


async def merged(generations: Sequence[Generation], choices: int) -> AsyncGenerator[Batch, None]:
    """Yields the batches of several prompts as they become ready. The first failure ends it.

    A prompt that passes its deadline without a token ends with an empty text if another prompt has a token."""
    queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue(maxsize=1)  # a slow client pauses generations
    late: Batch = []

    async def pump(generation: Generation, first_choice: int) -> None:
        try:
            async for batch in one(generation, first_choice):
                await queue.put(batch)
            await queue.put(None)
        except DeadlineExceeded as error:
            late.extend((first_choice + n, Delta(n, "", finish="length", late=True)) for n in range(choices))
            await queue.put(error)
        except Exception as error:  # raised below, where it is awaited
            await queue.put(error)

    pumps = [asyncio.create_task(pump(g, i * choices)) for i, g in enumerate(generations)]
    try:
        running, missed, answered = len(pumps), None, False
        while running:
            batch = await queue.get()
            if isinstance(batch, DeadlineExceeded):
                running, missed = running - 1, batch
            elif isinstance(batch, Exception):
                raise batch
            elif batch is None:
                running -= 1
            else:
                answered = True
                yield batch
        if missed is not None and not answered:
            raise missed
        if late:
            yield late
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
