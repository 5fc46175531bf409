"""A canary: new workers that a gateway gives a share of its requests, and what it measured of them and of the old ones.

The operator sets it on the control port of every gateway and reads the comparison in its report of demand. Counters
start at 0 with each new canary.
"""

from typing import Annotated

import msgspec

from legato_protocol.wire.messages import Count, Measure, Size
from legato_protocol.wire.stream import Role

CANARY_PATH = "/canary"
PoolName = Annotated[str, msgspec.Meta(pattern="^(prefill|decode)$")]
Sum = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]


class Canary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pod revision of the new workers, by pool (prefill or decode), and their largest share of requests in percent.

    Workers of a pool that is not named belong to both revisions.
    """

    revisions: dict[PoolName, str]
    weight: Annotated[int, msgspec.Meta(ge=0, le=100)]

    def is_new(self, role: Role, revision: str) -> bool | None:
        """True if a worker is of the new revision, False if of the old one, None if it belongs to both."""
        new = self.revisions.get("prefill" if role == "prefill" else "decode")
        return None if new is None else revision == new


class DurationBucket(msgspec.Struct, frozen=True):
    """Durations of requests with `least` (a power of two, or 0) to less than twice as many tokens.

    `logs` and `squares` are the sums of their natural logarithms, in seconds, and of the squares of these.
    """

    least: Count
    requests: Size
    logs: Sum
    squares: Measure


class RevisionReport(msgspec.Struct, frozen=True):
    """Requests that one revision served, counted while both could."""

    requests: Count = 0  # given to its workers; a retry counts as another
    failures: Count = 0  # of these; a retry may have saved the client's answer
    ttft: tuple[DurationBucket, ...] = ()  # from there to the first token, by tokens to compute
    tpot: tuple[DurationBucket, ...] = ()  # mean time of each later token, by tokens of the prompt


class CanaryReport(msgspec.Struct, frozen=True):
    """One gateway's comparison. `obstacle` is the reason why the new workers get no requests; empty if they do."""

    canary: Canary
    old: RevisionReport
    new: RevisionReport
    obstacle: str = ""


class BadCanary(ValueError):
    """Bytes that are not a canary. The text says why."""


_decoder = msgspec.json.Decoder(Canary)


def encode(canary: Canary) -> bytes:
    """Encodes a canary as JSON."""
    return msgspec.json.encode(canary)


def decode(data: bytes) -> Canary:
    """Decodes a canary. Raises BadCanary."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCanary(str(error)) from None
