"""The content of a worker's prefix cache, sent to gateways on `/events`.

After the gateway's `Greeting`, the worker sends one `Snapshot` in pages and then `Stored` and `Removed` with contiguous
numbers that follow the snapshot's. A gap, another epoch or a smaller number means that events were lost: the reader
must treat the worker's cache as empty until it has sent `SnapshotRequest` and a new snapshot is complete. Hashes are
sent joined (`block_hash.join`).

A worker with slower tiers (`Hello.tiers`) reports each of them in the same way, with numbers and snapshots of its own:
in a tier, a block is stored if a sequence can continue after it with blocks of that tier and of all faster ones.
"""

from typing import Final

import msgspec

from legato_protocol.wire.messages import BadFrame, Count, Message, decode_with
from legato_protocol.wire.stream import Greeting

ARENA: Final = 0  # tiers, from the fastest on: blocks that steps compute with
HOST: Final = 1  # in the memory of the host
DISK: Final = 2  # in files
TIERS: Final = ("arena", "host", "disk")  # their names


class SnapshotRequest(Message, tag="want", frozen=True):
    """Gateway → worker: start over with a snapshot."""


class Snapshot(Message, tag="snap", frozen=True):
    """One page of all hashes held after event `number`. Pages count from 0; `last` completes the set."""

    epoch: str
    number: int
    page: int
    last: bool
    hashes: bytes
    tier: Count = ARENA


class Stored(Message, tag="put", frozen=True):
    """These blocks were added to the prefix cache."""

    epoch: str
    number: int
    hashes: bytes
    tier: Count = ARENA


class Removed(Message, tag="del", frozen=True):
    """These blocks were removed from the prefix cache."""

    epoch: str
    number: int
    hashes: bytes
    tier: Count = ARENA


KVEvent = Snapshot | Stored | Removed
EventRequest = SnapshotRequest | Greeting

_events: "msgspec.msgpack.Decoder[KVEvent]" = msgspec.msgpack.Decoder(KVEvent)
_requests: "msgspec.msgpack.Decoder[EventRequest]" = msgspec.msgpack.Decoder(EventRequest)


def decode_event(data: bytes) -> KVEvent:
    """Decodes a worker's event. Raises UnknownKind for one of a later version, and BadFrame for anything else."""
    event = decode_with(_events, data)
    if len(event.hashes) % 16:
        raise BadFrame(f"{len(event.hashes)} bytes are not a whole number of block hashes")
    return event


def decode_request(data: bytes) -> EventRequest:
    """Decodes a gateway's frame on `/events`. Raises UnknownKind for one of a later version, and BadFrame for anything
    else."""
    return decode_with(_requests, data)
