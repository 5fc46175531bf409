"""Frames for gateways, collected during an iteration so that each gateway gets all tokens of a step in one frame.

The core identifies a request by its own key, since two gateways may choose the same id.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from legato_engine.core.frames import ForGateway
from legato_engine.core.reporting.phases import PhaseLog
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.results import Emission, ScoredTokens
from legato_engine.transfer.session.events import Aborted, Arrived
from legato_protocol.wire import stream
from legato_protocol.wire.stream import (
    Failed,
    FailureCode,
    Finish,
    HandoffReport,
    Part,
    PromptLogprobs,
    Started,
    TokenItem,
    TokenLogprobs,
    Tokens,
)

_PEER_LOST = ("peer_died", "peer_silent", "broken")
_SCORED_BYTES = 1 << 20  # of prompt logprobs in one frame, far below `MAX_FRAME_BYTES`


def key_of(gateway: int, id: str) -> str:
    """The core's key for request `id` of this gateway."""
    return f"{gateway}/{id}"


@lru_cache(4096)  # more than the running sequences, each of which needs it twice in a step
def split_key(key: str) -> tuple[int, str]:
    """The gateway and the id that `key_of` combined."""
    gateway, _, id = key.partition("/")
    return int(gateway), id


class Outbox:
    """Frames in the order in which they are sent.

    Prompt logprobs and hand-off reports come before tokens, which may end a request; all other frames come after them.
    """

    def __init__(self, phases: PhaseLog) -> None:
        self.phases = phases
        self._items: defaultdict[int, list[TokenItem]] = defaultdict(list)
        self._first: list[ForGateway] = []
        self._frames: list[ForGateway] = []
        self._reports: list[HandoffReport] = []

    def emit(self, emissions: Sequence[Emission]) -> dict[tuple[int, str], int]:
        """Adds new tokens, and returns their number by gateway and tenant. One loop with few calls, since each running
        sequence needs it in each step."""
        items, counts = self._items, defaultdict[tuple[int, str], int](int)
        for emission in emissions:
            request, sampled = emission.request, emission.sampled
            gateway, id = split_key(request.id)
            counts[gateway, request.tenant] += len(sampled)
            if len(sampled) == 1:
                items[gateway].append(_item(emission, id, emission.index, sampled, emission.finish))
            else:
                items[gateway] += token_items(emission, id)
            if request.trace:
                self.phases.on_emitted(emission)
        return counts

    def add_prompt_logprobs(self, tokens: ScoredTokens) -> None:
        """Adds the logprobs of a computed chunk of a prompt, in as many frames as they need."""
        gateway, id = split_key(tokens.request.id)
        for before, piece in tokens.logprobs.pieces(_SCORED_BYTES):
            frame = PromptLogprobs(id, tokens.request.attempt, tokens.start + before, piece)
            self._first.append(ForGateway(gateway, stream.encode(frame)))

    def fail(self, key: str, attempt: int, code: FailureCode, message: str, part: Part, retry: bool) -> None:
        gateway, id = split_key(key)
        self._add(gateway, Failed(id, attempt, code, message, part, retry))
        self.phases.on_failed(key, attempt, code)

    def report_start(self, request: Request) -> None:
        """Adds a Started frame, just before the request's first step."""
        gateway, id = split_key(request.id)
        self._add(gateway, Started(id, request.attempt))
        self.phases.on_started(request)

    def report_abort(self, key: str, event: Aborted) -> None:
        """Adds a Failed frame for a hand-off, to be retried because other workers may succeed."""
        code: FailureCode = "peer_lost" if event.cause in _PEER_LOST else "transfer"
        self.fail(key, event.attempt, code, event.reason, "transfer", True)

    def report_handoff(self, request: Request, event: Arrived, now: float, transport: str) -> None:
        """Adds the report of a complete hand-off to this worker."""
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
        self.phases.on_received(request, event)

    def take(self) -> tuple[tuple[ForGateway, ...], tuple[HandoffReport, ...]]:
        """Returns and removes all frames and reports."""
        tokens = [ForGateway(gateway, stream.encode(Tokens(tuple(items)))) for gateway, items in self._items.items()]
        taken = (*self._first, *tokens, *self._frames), tuple(self._reports)
        self._items.clear()
        self._first, self._frames, self._reports = [], [], []
        return taken

    def _add(self, gateway: int, frame: Started | Failed) -> None:
        self._frames.append(ForGateway(gateway, stream.encode(frame)))


def token_items(emission: Emission, id: str) -> list[TokenItem]:
    """The emission as one item, or as several if only some of its tokens have logprobs.

    An item has logprobs for all of its tokens or for none.
    """
    sampled, index = emission.sampled, emission.index
    if len(sampled) <= 1:  # the usual case
        return [_item(emission, id, index, sampled, emission.finish)]
    items = []
    for _, alike in groupby(sampled, lambda one: one.logprobs is None):
        run = tuple(alike)
        last = index + len(run) == emission.index + len(sampled)
        items.append(_item(emission, id, index, run, emission.finish if last else None))
        index += len(run)
    return items


def _item(emission: Emission, id: str, index: int, sampled: tuple[Sampled, ...], finish: Finish | None) -> TokenItem:
    request, logprobs = emission.request, tuple[TokenLogprobs, ...]()
    tokens: tuple[int, ...] = (sampled[0].token,) if len(sampled) == 1 else tuple([one.token for one in sampled])
    if sampled and sampled[0].logprobs is not None:
        logprobs = tuple([one.logprobs for one in sampled if one.logprobs is not None])
    return TokenItem(  # positional: keywords would double the time, which each token takes
        id, request.attempt, emission.choice, index, tokens, logprobs, finish,
        request.cached_tokens, request.preempted, request.reserved_blocks, request.peak_blocks,
    )  # fmt: skip
