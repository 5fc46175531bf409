"""GPUs as NVIDIA's management library (NVML) reports them. The only module that imports pynvml.

NVML knows nothing of CUDA_VISIBLE_DEVICES, and may number GPUs differently than CUDA does, so they are named by UUID.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import pynvml

from legato_engine.gpus.interface import EccKind, GpuReading, GpuUnreadable, SlowdownReason

_T = TypeVar("_T")

_PREFIXES = ("GPU-", "MIG-")  # of UUIDs: CUDA's have none
_SLOWDOWNS: dict[SlowdownReason, int] = {
    "thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
_ECC_ERRORS: dict[EccKind, int] = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}


def open_monitor(uuids: Sequence[str]) -> "NvmlMonitor":
    """Opens the GPUs of these UUIDs, with or without prefix. Raises GpuUnreadable."""
    with _mapped("NVML cannot be used"):
        pynvml.nvmlInit()
    try:
        return NvmlMonitor({_name(handle, uuid): handle for uuid in uuids for handle in [_handle(uuid)]})
    except GpuUnreadable:
        _shut_down()
        raise


class NvmlMonitor:
    """Implements `GpuMonitor`."""

    def __init__(self, handles: dict[str, Any]) -> None:
        self._handles = handles
        self._last = {gpu: GpuReading(gpu) for gpu in handles}
        self._xids: dict[str, Counter[int]] = {gpu: Counter() for gpu in handles}
        self._events = {gpu: events for gpu, handle in handles.items() if (events := _watch(handle)) is not None}

    def read(self) -> tuple[GpuReading, ...]:
        for gpu, handle in self._handles.items():
            self._take_events(gpu)
            counts = {**self._last[gpu].ecc_errors, **_ecc_errors(handle)}
            self._last[gpu] = replace(_read(gpu, handle), ecc_errors=counts, xid_errors=dict(self._xids[gpu]))
        return tuple(self._last.values())

    def close(self) -> None:
        for events in self._events.values():
            _ask(lambda events=events: pynvml.nvmlEventSetFree(events))  # type: ignore[misc]
        _shut_down()

    def _take_events(self, gpu: str) -> None:
        """Counts the errors since the last call; the driver queues them."""
        events = self._events.get(gpu)
        while events is not None and (event := _ask(lambda: pynvml.nvmlEventSetWait_v2(events, 0))) is not None:
            self._xids[gpu][int(event.eventData)] += 1


def _handle(uuid: str) -> Any:
    """The handle of a GPU, or of a part of one (MIG). Raises GpuUnreadable."""
    if not uuid.startswith(_PREFIXES):
        for prefix in _PREFIXES:
            with suppress(pynvml.NVMLError):
                return pynvml.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}")
    with _mapped(f"NVML does not know the GPU {uuid}"):
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _name(handle: Any, uuid: str) -> str:
    return _ask(lambda: str(pynvml.nvmlDeviceGetUUID(handle))) or uuid


def _watch(handle: Any) -> Any | None:
    """A set of events with the Xids of a GPU; None if its driver has no such events."""
    events = _ask(pynvml.nvmlEventSetCreate)
    if events is None:
        return None
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    except pynvml.NVMLError:
        _ask(lambda: pynvml.nvmlEventSetFree(events))
        return None
    return events


def _read(gpu: str, handle: Any) -> GpuReading:
    memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    rates = _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    reasons = _ask(lambda: int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
    return GpuReading(
        gpu,
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        utilization=None if rates is None else rates.gpu / 100,
        power=_ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        power_limit=_ask(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        temperature=_ask(lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        slowdowns=None if reasons is None else _slowdowns(reasons),
    )


def _slowdowns(reasons: int) -> frozenset[SlowdownReason]:
    """The reasons that are faults of cooling or power. A power limit that is reached is none: load does that."""
    slowdowns = {name for name, bits in _SLOWDOWNS.items() if reasons & bits}
    if reasons & pynvml.nvmlClocksEventReasonHwSlowdown and not slowdowns:
        slowdowns.add("hardware")  # older GPUs do not report which
    return frozenset(slowdowns)


def _ecc_errors(handle: Any) -> dict[EccKind, int]:
    errors = {}
    for kind, number in _ECC_ERRORS.items():
        count = _ask(lambda n=number: pynvml.nvmlDeviceGetTotalEccErrors(handle, n, pynvml.NVML_VOLATILE_ECC))  # type: ignore[misc]
        if count is not None:
            errors[kind] = int(count)
    return errors


def _ask(question: Callable[[], _T]) -> _T | None:
    """The answer of the driver; None if it has none: the GPU lacks a sensor, is lost, or nothing happened."""
    try:
        return question()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return None


@contextmanager
def _mapped(problem: str) -> Iterator[None]:
    """Raises GpuUnreadable."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise GpuUnreadable(f"{problem}: {error}") from None


def _shut_down() -> None:
    _ask(pynvml.nvmlShutdown)
