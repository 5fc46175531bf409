"""The demand that a gateway reports on its control port, as JSON: arrivals, waiting requests and their causes, lengths
of answers, the last `Load` of each worker, and connections to workers.

Counters start at 0 with the gateway's process, whose name (`DemandReport.gateway`) is unique: a reader computes rates
from two reports with the same name. The service's figures are the sums over its gateways.
"""

from typing import Literal

import msgspec

from legato_protocol.wire.canary import CanaryReport
from legato_protocol.wire.load import Load
from legato_protocol.wire.messages import Count, Measure
from legato_protocol.wire.stream import Role

DEMAND_PATH = "/demand"
WAIT = "wait"  # a query parameter: seconds to wait until the report's digest is not the one in `SEEN`
SEEN = "seen"  # a query parameter: the digest of the newest report that the caller has
LONGEST_WAIT = 30.0  # seconds
STALE_AFTER = 10.0  # seconds after which a worker's load no longer counts

WaitCause = Literal[
    "prefill",  # the queues of prefill workers are full
    "decode_room",  # no decode worker has enough free blocks
    "credits",  # every decode worker has as many sequences of this gateway as it accepts
    "no_worker",  # no decode worker is connected
]


class LengthBucket(msgspec.Struct, frozen=True):
    """Sequences of `least` (a power of two, or 0) to less than twice as many tokens."""

    least: Count
    requests: Count
    tokens: Count  # of all of them together


class ReportedLoad(msgspec.Struct, frozen=True):
    """The last `Load` that this gateway received from a worker, `age` seconds ago."""

    worker: str
    epoch: str
    role: Role
    block_size: Count
    age: Measure
    load: Load


class WorkerLink(msgspec.Struct, frozen=True):
    """A worker that discovery lists. `connected` is true while a connection with a completed greeting is open."""

    worker: str
    connected: bool
    problem: str = ""  # reason why it is not connected
    lost_for: Measure | None = None  # seconds since the last connection; None: it was never connected


class DemandReport(msgspec.Struct, frozen=True):
    """One gateway's demand. Prompt tokens count only if no cache was expected to cover them on arrival."""

    gateway: str
    uptime: Measure  # seconds
    arrivals: tuple[LengthBucket, ...]  # counters: requests that were admitted or queued, by their uncached tokens
    refused: dict[str, Count]  # counters: requests refused in the gateway, by drop reason
    outputs: tuple[LengthBucket, ...]  # counters: choices that finished, by their tokens
    output_squares: Measure  # counter: the sum of the squares of their tokens
    head_wait: dict[WaitCause, Measure]  # counters: seconds for which the head of the queue waited
    waiting: tuple[LengthBucket, ...]  # now: requests without a first token, queued or at workers
    queued_requests: Count  # now: of these, requests queued in the gateway
    queued_tokens: Count  # their uncached tokens
    queued_prompt_tokens: Count  # all tokens of their prompts
    workers: tuple[ReportedLoad, ...]
    links: tuple[WorkerLink, ...] | None = None  # None: an older gateway, which does not report links
    tokens: tuple[str, ...] = ()  # ids of the service tokens that it accepts; it sends the first
    adapters: str | None = None  # id of the list of adapters that it has read; None: it follows no list
    retried: tuple[str, ...] = ()  # codes of failures that led to new dispatches in the last minute
    canary: CanaryReport | None = None  # None: no canary is set
    digest: str = ""  # of everything but times; empty: an older gateway, which cannot wait for a change


class BadReport(ValueError):
    """Bytes that are not a gateway's report. The text says why."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(DemandReport)


def encode(report: DemandReport) -> bytes:
    """Encodes a report as JSON."""
    return _encoder.encode(report)


def decode(data: bytes) -> DemandReport:
    """Decodes a gateway's report. Raises BadReport."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReport(str(error)) from None
