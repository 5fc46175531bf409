"""One line of a recording: the autoscaler's signals at one moment, and the sizes of the pools. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from legato_operator.policy import Signals
from legato_protocol.wire.messages import Count, Measure

LARGEST = 1e15  # largest number in a line


class BadRound(ValueError):
    """Not a valid round. The text has the reason."""


@dataclass(frozen=True)
class SignalRound:
    """Pools are `prefill` and `decode`. `desired` are the current sizes that `decide` starts from."""

    time: Measure  # seconds since the epoch
    namespace: str
    service: str
    mode: str  # `scaling.mode`
    desired: Mapping[str, Count]  # `spec.replicas` of each pool
    targets: Mapping[str, Count]  # after bounds, ratio and budget
    signals: Signals
    reasons: Mapping[str, str] = field(default_factory=dict)  # of the autoscaler's last decision; empty without one
    version: Literal[1] = 1


def encode(made: SignalRound) -> bytes:
    """Encodes a round as JSON, without a line break."""
    return _encoder.encode(made)


def decode(line: bytes) -> SignalRound:
    """Decodes a round and checks its numbers. Raises BadRound."""
    try:
        made = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRound(str(error)) from None
    for path, number in _numbers(msgspec.to_builtins(made), ""):
        if not 0 <= number <= LARGEST:
            raise BadRound(f"not a valid number: {number:g} (0 to {LARGEST:g}) at {path}")
    _check(made)
    return made


def _check(made: SignalRound) -> None:
    traffic = made.signals.traffic
    if not made.desired or made.desired.keys() != made.targets.keys():
        raise BadRound("desired and targets must name the same pools, at least one")
    if any(worker.blocks is not None and worker.blocks.size < 1 for worker in made.signals.workers):
        raise BadRound("signals.workers: size of blocks must be 1 or more")
    if any(worker.prefill_cost is not None and worker.prefill_cost.chunk_tokens < 1 for worker in made.signals.workers):
        raise BadRound("signals.workers: chunk_tokens must be 1 or more")
    if traffic is not None and (not traffic.seconds or not traffic.recent_seconds):
        raise BadRound("signals.traffic: seconds and recent_seconds must be above 0")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _numbers(inner, f"{path}[{i}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SignalRound)
