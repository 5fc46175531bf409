"""Chooses the transport of a worker. Pure: the caller knows what this machine lacks, and opens transports.

With `Auto`, and with `RDMA` unless it is required, the order is: RDMA directly from and to GPU memory if the KV is
there, RDMA, TCP. The choice has the reasons why earlier ones are not used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from legato_engine.transfer.link import LinkError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransportChoice(Generic[T]):
    """`opened` is the open transport; `reason` is why preferred ones are not used, or ""."""

    opened: T
    reason: str = ""


def candidates(transport: str, *, on_device: bool, required: bool, lacking: Sequence[str]) -> tuple[str, ...]:
    """The transports to try if the settings ask for `transport`, best first.

    `on_device`: the KV is in GPU memory. `lacking` is what this machine lacks for RDMA: then GPUDirect is not tried.
    """
    if transport not in ("Auto", "RDMA"):
        return (transport,)
    direct = ("GPUDirect",) if on_device and not lacking else ()
    return (*direct, "RDMA") if required else (*direct, "RDMA", "TCP")


def first_usable(names: Sequence[str], use: Callable[[str], T]) -> TransportChoice[T]:
    """Opens the first usable transport with `use`, which raises LinkError for others.

    Raises LinkError with all reasons if none can be used.
    """
    reasons: list[str] = []
    for name in names:
        try:
            return TransportChoice(use(name), "; ".join(reasons))
        except LinkError as error:
            reasons.append(f"{name}: {error}")
    raise LinkError(f"no allowed transport for hand-offs can be used: {'; '.join(reasons)}")


def is_fallback(transport: str, reason: str, has_device: bool) -> bool:
    """True if a fallback should be reported: RDMA was asked for, or there is a device for it."""
    return bool(reason) and (transport == "RDMA" or has_device)
