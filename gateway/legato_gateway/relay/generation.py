"""One request in progress: its choices, its unread deltas, usage and route. Knows nothing of workers."""

import asyncio
from collections import deque
from dataclasses import replace
from typing import Protocol

from legato_gateway.errors import DeadlineExceeded, GatewayError
from legato_gateway.relay.choice import OutputChoice
from legato_gateway.relay.records.timing import RequestTiming
from legato_gateway.relay.records.trace import RequestTrace
from legato_gateway.request import Delta, GenerationRequest, PromptScores, RouteRecord, Usage
from legato_gateway.routing.prefix_hashes import PrefixHashes
from legato_gateway.timers import Timer
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import TokenItem


class Owner(Protocol):
    """The relay, as its generations use it."""

    def pause(self, generation: "RunningGeneration", on: bool) -> None:
        """The client reads too slowly, or fast enough again."""

    def leave(self, generation: "RunningGeneration") -> None:
        """The client disconnected."""


class RunningGeneration:
    """Implements `request.Generation`. The relay writes to it; the client's handler iterates over it."""

    def __init__(
        self, request: GenerationRequest, vocabulary: ModelTokenizer, owner: Owner, buffer_tokens: int
    ) -> None:
        self.request = request
        self.prompt = pack_tokens(request.prompt)
        self.hashes = PrefixHashes(self.prompt, request.cache_salt)
        self.choices = [OutputChoice(index, request, vocabulary) for index in range(request.choices)]
        self.route = RouteRecord(request.id, prompt_tokens=len(request.prompt))
        self.deaths: set[tuple[str, str]] = set()  # (worker, epoch) pairs lost while computing it
        self.suspected: set[tuple[str, str]] = set()  # likewise, as reported by the other worker of the pair
        self.faults = 0  # attempts at which its logits were not finite
        self.uncached = len(request.prompt)  # prompt tokens that no worker had cached when it arrived
        self.timing = RequestTiming(0.0)
        self.trace: RequestTrace | None = None
        self.id = ""  # unique in this gateway, unlike the client's id
        self.ends = 0.0  # at the latest, on the clock of timers
        self.expires = 0.0  # unless a token comes before
        self.timer: Timer | None = None
        self.paused = False
        self.paused_at = 0.0  # on the clock of timers
        self.read_tokens = 0  # by the client …
        self.read_before = 0  # … when its progress was last checked
        self.read_at = 0.0  # when it was last seen to read while paused, on the clock of timers
        self.ended = False
        self.unfinished = request.choices
        asked = request.params.prompt_logprobs
        self.scores = None if asked is None else PromptScores(request.prompt, asked)
        self._introduced: set[int] = set()  # choices whose first delta carried the scores
        self._owner = owner
        self._limit = buffer_tokens
        self._cached = 0
        self._deltas: deque[tuple[Delta, int]] = deque()
        self._unread = 0
        self._error: GatewayError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._admitted = False
        self._decided = asyncio.Event()

    # ── for the client's handler ────────────────────────────────────────────────────────────────────────────────

    def __aiter__(self) -> "RunningGeneration":
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self.ended:
                raise self._error or StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._pop()

    def ready(self) -> list[Delta]:
        """Removes and returns the deltas that can be had without waiting."""
        return [self._pop() for _ in range(len(self._deltas))]

    async def wait_admitted(self) -> bool:
        """Waits until it is admitted or ended; returns True if admitted."""
        await self._decided.wait()
        return self._admitted

    async def cancel(self) -> None:
        """Stops all work for it immediately."""
        self._owner.leave(self)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        reasoning = [count for choice in self.choices if (count := choice.reasoning_tokens) is not None]
        reasoning_tokens = sum(reasoning) if reasoning else None
        return Usage(len(self.request.prompt), self.completion_tokens, self._cached, reasoning_tokens)

    # ── for the relay ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)

    @property
    def has_token(self) -> bool:
        """True once any choice has a token."""
        return any(choice.tokens for choice in self.choices)

    @property
    def progressed(self) -> float:
        """Time of its latest token, its arrival, or its latest read while paused, on the clock of timers."""
        return max(self.timing.arrived, self.read_at, *(choice.last_at for choice in self.choices))

    @property
    def lacks_scores(self) -> bool:
        """True while requested logprobs of its prompt are missing."""
        return self.scores is not None and not self.scores.complete

    @property
    def unread(self) -> int:
        """Tokens that the client has not read."""
        return self._unread

    def take(self, choice: OutputChoice, item: TokenItem) -> None:
        """Appends an item's new tokens. The caller has checked that there is no gap before them."""
        if item.cached_tokens > self._cached:
            self._cached = item.cached_tokens
        self._count_blocks(choice, item)
        delta = choice.take(item)
        if choice.finish is not None:
            self.unfinished -= 1
            self.route.preemptions += item.preemptions
        if delta is not None:
            self._append(delta, len(item.token_ids))
            self._wake()
            if self._unread >= self._limit and not self.paused:
                self.paused = True
                self._owner.pause(self, True)

    def _count_blocks(self, choice: OutputChoice, item: TokenItem) -> None:
        if item.reserved_blocks != choice.reserved_blocks:
            self.route.kv_blocks_reserved += item.reserved_blocks - choice.reserved_blocks
            choice.reserved_blocks = item.reserved_blocks
        if item.peak_blocks > choice.peak_blocks:
            self.route.kv_blocks_peak += item.peak_blocks - choice.peak_blocks
            choice.peak_blocks = item.peak_blocks

    def admit(self) -> None:
        """Marks it as admitted."""
        self._admitted = True
        self._decided.set()

    def end(self, error: GatewayError | None = None) -> None:
        """Ends it. `error` is raised after the remaining deltas; a deadline only truncates an answer with a token."""
        self.ended = True
        if isinstance(error, DeadlineExceeded) and self.has_token:
            self._cut_off()
        else:
            self._error = error
        self._decided.set()
        self.route.output_tokens = self.completion_tokens
        self.route.finish = (
            (error.code or "error") if error else ",".join(c.finish or "cancelled" for c in self.choices)
        )
        self._wake()

    def _cut_off(self) -> None:
        for choice in self.choices:
            if choice.finish is None:
                self._append(choice.cut_off(), 0)

    def _append(self, delta: Delta, tokens: int) -> None:
        if self.scores is not None and delta.choice not in self._introduced:
            self._introduced.add(delta.choice)
            delta = replace(delta, scores=self.scores)
        self._deltas.append((delta, tokens))
        self._unread += tokens

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pop(self) -> Delta:
        delta, count = self._deltas.popleft()
        self._unread -= count
        self.read_tokens += count
        if self.paused and self._unread <= self._limit // 2:
            self.paused = False
            if not self.ended:
                self._owner.pause(self, False)
        return delta
