"""Readings of GPUs, and the interface of their source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

SlowdownReason = Literal["thermal", "power_brake", "hardware"]
SLOWDOWN_REASONS: tuple[SlowdownReason, ...] = ("thermal", "power_brake", "hardware")
EccKind = Literal["corrected", "uncorrected"]
ECC_KINDS: tuple[EccKind, ...] = ("corrected", "uncorrected")


class GpuUnreadable(Exception):
    """GPUs cannot be read. The text has the reason."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Values of one GPU. None, or a missing key: this GPU or its driver does not report the value, or not any longer.

    Power is in watts, temperature in °C, memory in bytes; utilization is the share of time in which a kernel ran.
    """

    gpu: str  # its UUID, as `nvidia-smi -L` prints it
    memory_used: int | None = None
    memory_total: int | None = None
    utilization: float | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None
    ecc_errors: Mapping[EccKind, int] = field(default_factory=dict)  # since the driver was loaded
    slowdowns: frozenset[SlowdownReason] | None = None  # that lower its clocks now
    xid_errors: Mapping[int, int] = field(default_factory=dict)  # since the monitor was opened, by number of the Xid


class GpuMonitor(Protocol):
    """A source of readings. Calls may block, and come from one thread."""

    def read(self) -> tuple[GpuReading, ...]:
        """Returns a reading of each GPU. A faulty GPU keeps its counts."""
        ...

    def close(self) -> None: ...
