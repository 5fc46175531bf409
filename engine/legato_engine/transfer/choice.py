"""Which transport a worker uses. Pure: what each one lacks and shows is asked of the caller.

With `Auto`, and with `RDMA` unless it is required, RDMA comes first, straight from and to a GPU's memory where the KV
is there, and TCP last. What is passed over is told with its reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from legato_engine.transfer.link import LinkError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """`opened` is what carries hand-offs. `reason`: why not what comes before it, or nothing."""

    opened: T
    reason: str = ""


def candidates(transport: str, *, on_device: bool, required: bool, lacking: Sequence[str]) -> tuple[str, ...]:
    """What may be used where `transport` is asked for, the best first. `on_device`: the KV is in a GPU's memory;
    `lacking` is what this machine lacks for RDMA, without which nothing of it need be tried."""
    if transport not in ("Auto", "RDMA"):
        return (transport,)
    direct = ("GPUDirect",) if on_device and not lacking else ()
    return (*direct, "RDMA") if required else (*direct, "RDMA", "TCP")


def first_usable(names: Sequence[str], use: Callable[[str], T]) -> Choice[T]:
    """The first that can be used; `use` raises LinkError for others. Raises LinkError with all reasons if none can."""
    reasons: list[str] = []
    for name in names:
        try:
            return Choice(use(name), "; ".join(reasons))
        except LinkError as error:
            reasons.append(f"{name}: {error}")
    raise LinkError(f"no transport for hand-offs that is allowed here can be used: {'; '.join(reasons)}")


def is_fallback(transport: str, reason: str, has_device: bool) -> bool:
    """Whether somebody has to hear of it: RDMA was asked for, or there is a device for it. `Auto` is TCP elsewhere."""
    return bool(reason) and (transport == "RDMA" or has_device)
