"""What a worker's prefix cache holds, told to gateways on `/events`.

A connection begins with the gateway's `Greeting`, then the worker sends one `Snapshot` in pages and after it
`Stored`/`Removed` with contiguous `number`s that follow the snapshot's. A gap, another epoch or a number
that goes back means that events were lost: the reader must treat the worker as holding nothing, until it has sent
`SnapshotRequest` and a new snapshot is complete. Hashes travel joined (`block_hash.join`).
"""

import msgspec

from legato_protocol.messages import BadFrame, Message, decode_with
from legato_protocol.stream import Greeting


class SnapshotRequest(Message, tag="want", frozen=True):
    """Gateway → worker: start over with a snapshot."""


class Snapshot(Message, tag="snap", frozen=True):
    """One page of all hashes held after event `number`. Pages count from 0; `last` completes the set."""

    epoch: str
    number: int
    page: int
    last: bool
    hashes: bytes


class Stored(Message, tag="put", frozen=True):
    """These blocks can now be found by their hash."""

    epoch: str
    number: int
    hashes: bytes


class Removed(Message, tag="del", frozen=True):
    """These blocks cannot be found any more."""

    epoch: str
    number: int
    hashes: bytes


KVEvent = Snapshot | Stored | Removed
EventRequest = SnapshotRequest | Greeting

_events: "msgspec.msgpack.Decoder[KVEvent]" = msgspec.msgpack.Decoder(KVEvent)
_requests: "msgspec.msgpack.Decoder[EventRequest]" = msgspec.msgpack.Decoder(EventRequest)


def decode_event(data: bytes) -> KVEvent:
    """A worker's event. Raises UnknownKind for a later version's, and BadFrame for anything else."""
    event = decode_with(_events, data)
    if len(event.hashes) % 16:
        raise BadFrame(f"{len(event.hashes)} bytes are no whole number of block hashes")
    return event


def decode_request(data: bytes) -> EventRequest:
    """What a gateway may send on `/events`. Raises UnknownKind for what a later version may, and BadFrame for
    anything else."""
    return decode_with(_requests, data)
