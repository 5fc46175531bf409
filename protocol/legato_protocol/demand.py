"""What a gateway tells of demand on its control port, as JSON: how much arrives, what waits and for what, how long
answers become, the last `Load` of each worker, and to which workers it has a connection.

Counters begin at 0 with the gateway's process, whose name (`DemandReport.gateway`) is its own: a reader forms rates
from two reports of one name. Sums over gateways are those of the service.
"""

from typing import Literal

import msgspec

from legato_protocol.load import Load
from legato_protocol.messages import Count, Measure
from legato_protocol.stream import Role

DEMAND_PATH = "/demand"
WAIT = "wait"  # a parameter of it: seconds for which the answer is waited with until a request is held
LONGEST_WAIT = 5.0  # seconds; a gateway that stops is held up for at most as long

WaitCause = Literal[
    "prefill",  # workers have prompts enough in their queues
    "decode_room",  # no worker that decodes has blocks for it
    "credits",  # all of these have as many sequences of this gateway as they take
    "no_worker",  # none of them is there
]


class LengthBucket(msgspec.Struct, frozen=True):
    """Sequences with `least` or more tokens, a power of two, and less than twice as many; 0 stands for itself."""

    least: Count
    requests: Count
    tokens: Count  # of all of them together


class ReportedLoad(msgspec.Struct, frozen=True):
    """What a worker said last to this gateway, `age` seconds ago. `load` is the frame itself."""

    worker: str
    epoch: str
    role: Role
    block_size: Count
    age: Measure
    load: Load


class WorkerLink(msgspec.Struct, frozen=True):
    """A worker that discovery lists, and whether this gateway has greeted it on a connection that is open now."""

    worker: str
    connected: bool
    problem: str = ""  # why not
    lost_for: Measure | None = None  # seconds since a connection was there; None: there never was one


class DemandReport(msgspec.Struct, frozen=True):
    """Tokens of prompts are those that no cache was expected to cover when the request arrived."""

    gateway: str
    uptime: Measure  # seconds
    arrivals: tuple[LengthBucket, ...]  # counters: requests that were admitted or held, by their uncached tokens
    refused: dict[str, Count]  # counters: requests refused in the gateway, by drop reason
    outputs: tuple[LengthBucket, ...]  # counters: choices that finished, by their tokens
    output_squares: Measure  # counter: the sum of the squares of their tokens
    head_wait: dict[WaitCause, Measure]  # counters: seconds for which the first of the held requests waited
    waiting: tuple[LengthBucket, ...]  # now: requests without a first token, wherever they are
    held_requests: Count  # now: of these, requests that no worker has
    held_tokens: Count  # their uncached tokens
    held_prompt_tokens: Count  # all tokens of their prompts
    workers: tuple[ReportedLoad, ...]
    links: tuple[WorkerLink, ...] | None = None  # None: an older gateway, which does not tell
    tokens: tuple[str, ...] = ()  # ids of the service tokens that it takes, the one that it shows first
    adapters: str | None = None  # id of the list of adapters that it has read; None: it follows none
    retried: tuple[str, ...] = ()  # codes of failures that led to new dispatches in the last minute


class BadReport(ValueError):
    """Bytes that are no report of a gateway. The text says why."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(DemandReport)


def encode(report: DemandReport) -> bytes:
    """The report as JSON."""
    return _encoder.encode(report)


def decode(data: bytes) -> DemandReport:
    """A gateway's report. Raises BadReport for anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReport(str(error)) from None
