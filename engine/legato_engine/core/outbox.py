"""What a turn has to tell gateways, gathered so that all tokens of a step make one frame for each of them.

The core knows a request by a key of its own, since two gateways may choose the same id.
"""

from collections import defaultdict
from itertools import groupby

from legato_engine.core.frames import ForGateway
from legato_engine.core.phases import PhaseLog
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.results import Emission, ScoredTokens
from legato_engine.transfer.events import Aborted, Arrived
from legato_protocol import stream
from legato_protocol.stream import (
    Begun,
    Failed,
    FailureCode,
    Finish,
    HandoffReport,
    Part,
    PromptLogprobs,
    TokenItem,
    Tokens,
)

_PEER_LOST = ("peer_died", "peer_silent", "broken")
_SCORED_BYTES = 1 << 20  # of a prompt's logprobs in one frame: `MAX_FRAME_BYTES` is far above


def key_of(gateway: int, id: str) -> str:
    """The core's name for the request that this gateway calls `id`."""
    return f"{gateway}/{id}"


def split_key(key: str) -> tuple[int, str]:
    """What `key_of` was given."""
    gateway, _, id = key.partition("/")
    return int(gateway), id


class Outbox:
    """Frames by gateway. Logprobs of prompts and reports of hand-offs go before tokens, which may end a request; all
    other frames go after tokens."""

    def __init__(self, phases: PhaseLog) -> None:
        self.phases = phases
        self._items: defaultdict[int, list[TokenItem]] = defaultdict(list)
        self._first: list[ForGateway] = []
        self._frames: list[ForGateway] = []
        self._reports: list[HandoffReport] = []

    def emit(self, emission: Emission) -> None:
        gateway, id = split_key(emission.request.id)
        self._items[gateway] += token_items(emission, id)
        self.phases.emitted(emission)

    def scored(self, tokens: ScoredTokens) -> None:
        """A chunk of a prompt whose logprobs are asked for was computed: it may have more than one frame holds."""
        gateway, id = split_key(tokens.request.id)
        for before, piece in tokens.logprobs.pieces(_SCORED_BYTES):
            frame = PromptLogprobs(id, tokens.request.attempt, tokens.start + before, piece)
            self._first.append(ForGateway(gateway, stream.encode(frame)))

    def fail(self, key: str, attempt: int, code: FailureCode, message: str, part: Part, retry: bool) -> None:
        gateway, id = split_key(key)
        self._say(gateway, Failed(id, attempt, code, message, part, retry))
        self.phases.failed(key, attempt, code)

    def begun(self, request: Request) -> None:
        """Its first step is about to run."""
        gateway, id = split_key(request.id)
        self._say(gateway, Begun(id, request.attempt))
        self.phases.begun(request)

    def aborted(self, key: str, event: Aborted) -> None:
        """A hand-off failed. Another pair may always succeed: an abort's own `retry` is about these two workers."""
        code: FailureCode = "peer_lost" if event.cause in _PEER_LOST else "transfer"
        self.fail(key, event.attempt, code, event.reason, "transfer", True)

    def report(self, request: Request, event: Arrived, now: float, transport: str) -> None:
        """A hand-off was received."""
        gateway, id = split_key(request.id)
        report = HandoffReport(
            id=id,
            attempt=event.attempt,
            room=event.room,
            source=event.source,
            blocks=event.blocks,
            cached_blocks=event.cached,
            bytes=event.bytes,
            seconds=event.seconds,
            boundary=event.final.held + max(0.0, now - event.final_at),
            transport=transport,
        )
        self._reports.append(report)
        self._first.append(ForGateway(gateway, stream.encode(report)))
        self.phases.received(request, event)

    def take(self) -> tuple[tuple[ForGateway, ...], tuple[HandoffReport, ...]]:
        """Everything since the last call."""
        tokens = [ForGateway(gateway, stream.encode(Tokens(tuple(items)))) for gateway, items in self._items.items()]
        taken = (*self._first, *tokens, *self._frames), tuple(self._reports)
        self._items.clear()
        self._first, self._frames, self._reports = [], [], []
        return taken

    def _say(self, gateway: int, frame: Begun | Failed) -> None:
        self._frames.append(ForGateway(gateway, stream.encode(frame)))


def token_items(emission: Emission, id: str) -> list[TokenItem]:
    """How an emission is told: one item, or some where only a part of its tokens have logprobs, which an item has for
    all of its tokens or for none."""
    sampled, index = emission.sampled, emission.index
    if len(sampled) <= 1:  # as most are
        return [_item(emission, id, index, sampled, emission.finish)]
    items = []
    for _, alike in groupby(sampled, lambda one: one.logprobs is None):
        run = tuple(alike)
        last = index + len(run) == emission.index + len(sampled)
        items.append(_item(emission, id, index, run, emission.finish if last else None))
        index += len(run)
    return items


def _item(emission: Emission, id: str, index: int, sampled: tuple[Sampled, ...], finish: Finish | None) -> TokenItem:
    return TokenItem(
        id=id,
        attempt=emission.request.attempt,
        choice=emission.choice,
        index=index,
        token_ids=tuple([one.token for one in sampled]),
        logprobs=tuple([one.logprobs for one in sampled if one.logprobs is not None]),
        finish=finish,
        cached_tokens=emission.request.cached_tokens,
        preemptions=emission.request.preempted,
        reserved_blocks=emission.request.reserved_blocks,
        peak_blocks=emission.request.peak_blocks,
    )
