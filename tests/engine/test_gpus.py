"""Readings of GPUs: the fake, pynvml over a scripted driver, and this machine's driver if it has one, read alike."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest
from waiting import until

from legato_engine.gpus import families, nvml
from legato_engine.gpus.fake import FakeDriver, FakeGpuMonitor
from legato_engine.gpus.interface import GpuReading, GpuUnreadable
from legato_engine.gpus.watch import STALE, GpuWatch, Open
from legato_engine.metrics import WorkerMetrics

UUID = "0123-45"
READING = GpuReading(f"GPU-{UUID}", 3 << 30, 80 << 30, 0.25, 350.5, 700.0, 61.0, {"corrected": 4, "uncorrected": 0})
SLOWED = pynvml.nvmlClocksEventReasonHwThermalSlowdown | pynvml.nvmlClocksEventReasonHwSlowdown


class ScriptedDriver:
    """Implements the functions of libnvidia-ml for one GPU. An answer may be an error's number."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {"reasons": SLOWED}
        self.xids: list[int] = []
        self.used = 0  # initialized and not shut down

    def nvmlInitWithFlags(self, _flags: Any) -> int:
        self.used += 1
        return self.answers.get("init", 0)

    def nvmlShutdown(self) -> int:
        self.used -= 1
        return 0

    def nvmlErrorString(self, _number: Any) -> bytes:
        return b"it fails"

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, _handle: Any) -> int:
        return 0 if uuid.value == READING.gpu.encode() else pynvml.NVML_ERROR_NOT_FOUND

    def nvmlDeviceGetUUID(self, _handle: Any, text: Any, _size: Any) -> int:
        text.value = READING.gpu.encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, _handle: Any, memory: Any) -> int:
        memory._obj.used, memory._obj.total = READING.memory_used, READING.memory_total
        return self.answers.get("lost", 0)

    def nvmlDeviceGetUtilizationRates(self, _handle: Any, rates: Any) -> int:
        rates._obj.gpu = 25
        return self.answers.get("lost", 0)

    def nvmlDeviceGetPowerUsage(self, _handle: Any, power: Any) -> int:
        power._obj.value = 350_500
        return self.answers.get("power", self.answers.get("lost", 0))

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: Any, power: Any) -> int:
        power._obj.value = 700_000
        return self.answers.get("lost", 0)

    def nvmlDeviceGetTemperature(self, _handle: Any, _sensor: Any, temperature: Any) -> int:
        temperature._obj.value = 61
        return self.answers.get("lost", 0)

    def nvmlDeviceGetTotalEccErrors(self, _handle: Any, kind: Any, _counter: Any, count: Any) -> int:
        count._obj.value = 4 if kind.value == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED else 0
        return self.answers.get("lost", 0)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: Any, reasons: Any) -> int:
        reasons._obj.value = self.answers["reasons"]
        return self.answers.get("lost", 0)

    def nvmlEventSetCreate(self, _events: Any) -> int:
        return 0

    def nvmlDeviceRegisterEvents(self, _handle: Any, _kinds: Any, _events: Any) -> int:
        return self.answers.get("events", 0)

    def nvmlEventSetWait_v2(self, _events: Any, event: Any, _timeout: ctypes.c_uint) -> int:
        if not self.xids:
            return pynvml.NVML_ERROR_TIMEOUT
        event._obj.eventData = self.xids.pop(0)
        return 0

    def nvmlEventSetFree(self, _events: Any) -> int:
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ScriptedDriver:
    scripted = ScriptedDriver()
    monkeypatch.setattr(pynvml, "nvmlLib", scripted)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return scripted


@pytest.fixture(params=["fake", "scripted", "real"])
def opened(request: pytest.FixtureRequest) -> tuple[Open, str]:
    """An opener of monitors, and the UUID of a GPU."""
    if request.param == "fake":
        return FakeDriver([READING]).open_monitor, UUID
    if request.param == "scripted":
        request.getfixturevalue("driver")
        return nvml.open_monitor, UUID
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no driver of NVIDIA's GPUs here: {error}")
    return nvml.open_monitor, pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)).removeprefix("GPU-")


def test_a_monitor_reads_the_gpu_that_it_was_opened_for(opened: tuple[Open, str]) -> None:
    open_monitor, uuid = opened
    monitor = open_monitor([uuid])
    (reading,) = monitor.read()
    assert reading.gpu == f"GPU-{uuid}"
    assert 0 < (reading.memory_used or 0) <= (reading.memory_total or 0)
    assert 0 <= (reading.utilization or 0) <= 1
    assert 0 < (reading.temperature or 50) < 150
    assert not reading.xid_errors
    assert [again.gpu for again in monitor.read()] == [reading.gpu]
    monitor.close()
    with pytest.raises(GpuUnreadable, match="missing"):
        open_monitor(["missing"])


def test_the_fake_and_pynvml_read_the_same(driver: ScriptedDriver) -> None:
    driver.answers["reasons"] = pynvml.nvmlClocksEventReasonSwPowerCap  # usual under load, and not a fault
    fake, real = FakeDriver([READING]).open_monitor([UUID]), nvml.open_monitor([UUID])
    (reading,) = real.read()
    assert (reading.slowdowns, fake.read()) == (frozenset(), (GpuReading(**_values(reading) | {"slowdowns": None}),))


def test_a_lost_gpu_keeps_its_counts(driver: ScriptedDriver) -> None:
    fakes = FakeDriver([READING])
    fake, real = fakes.open_monitor([UUID]), nvml.open_monitor([UUID])
    real.read()
    fakes.fail(READING.gpu, 79)
    fakes.lost.add(READING.gpu)
    driver.xids, driver.answers["lost"] = [79], pynvml.NVML_ERROR_GPU_IS_LOST
    assert real.read() == fake.read() == real.read()
    assert real.read() == (GpuReading(READING.gpu, ecc_errors=READING.ecc_errors, xid_errors={79: 1}),)


@pytest.mark.parametrize(
    ("reasons", "slowdowns"),
    [
        (SLOWED, {"thermal"}),
        (pynvml.nvmlClocksEventReasonHwSlowdown, {"hardware"}),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown | SLOWED, {"thermal", "power_brake"}),
    ],
)
def test_faults_that_slow_a_gpu_are_named(driver: ScriptedDriver, reasons: int, slowdowns: set[str]) -> None:
    driver.answers["reasons"] = reasons
    assert nvml.open_monitor([UUID]).read()[0].slowdowns == slowdowns


def test_a_value_that_the_gpu_does_not_report_is_missing_alone(driver: ScriptedDriver) -> None:
    driver.answers |= {"power": pynvml.NVML_ERROR_NOT_SUPPORTED, "events": pynvml.NVML_ERROR_NOT_SUPPORTED}
    monitor = nvml.open_monitor([UUID])
    (reading,) = monitor.read()
    assert (reading.power, reading.power_limit) == (None, 700.0)
    text = {family.name: family.samples for family in families.families([reading])}
    assert text["legato_worker_gpu_power_watts"] == []
    monitor.close()
    assert driver.used == 0


def test_a_driver_that_does_not_start_is_shut_down(driver: ScriptedDriver) -> None:
    with pytest.raises(GpuUnreadable, match="NVML does not know the GPU 77"):
        nvml.open_monitor(["77"])
    assert driver.used == 0
    driver.answers["init"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(GpuUnreadable, match="NVML cannot be used: Driver Not Loaded"):
        nvml.open_monitor([UUID])


@pytest.fixture
def watched() -> Iterator[Callable[..., GpuWatch]]:
    watches: list[GpuWatch] = []

    def watch(open_monitor: Open, **options: Any) -> GpuWatch:
        watches.append(GpuWatch(open_monitor, interval=0.001, **{"log": lambda _: None, **options}))
        return watches[-1]

    yield watch
    for each in watches:
        each.close()


async def test_a_worker_exposes_its_gpus_through_restarts_of_the_core(watched: Callable[..., GpuWatch]) -> None:
    fakes = FakeDriver([READING])
    watch = watched(fakes.open_monitor)
    metrics = WorkerMetrics(watch)
    metrics.on_core_started((UUID,))
    await until(lambda: watch.readings)
    fakes.fail(READING.gpu, 79)
    metrics.on_core_started((UUID,))
    line = f'legato_worker_gpu_xid_errors_total{{gpu="{READING.gpu}",xid="79"}} 1.0'
    await until(lambda: line in metrics.exposition(None, ready=True, gateways=0).decode())
    assert len(fakes.monitors) == 1
    watch.close()
    await until(lambda: fakes.monitors[0].closed)


async def test_without_gpus_or_driver_nothing_is_exposed_and_one_line_logged(watched: Callable[..., GpuWatch]) -> None:
    lines: list[str] = []
    watch = watched(FakeDriver(missing="no driver").open_monitor, log=lines.append)
    metrics = WorkerMetrics(watch)
    metrics.on_core_started(())
    assert lines == []
    metrics.on_core_started((UUID,))
    await until(lambda: lines)
    metrics.on_core_started((UUID,))
    assert b"legato_worker_gpu" not in metrics.exposition(None, ready=True, gateways=0)
    assert lines == ["no metrics of GPUs: no driver"]


async def test_readings_of_a_driver_that_blocks_are_dropped(watched: Callable[..., GpuWatch]) -> None:
    now, continued, fakes = [0.0], threading.Event(), FakeDriver([READING])

    class Blocking(FakeGpuMonitor):
        def read(self) -> tuple[GpuReading, ...]:
            if watch.readings:
                continued.wait()
            return super().read()

    watch = watched(lambda _: Blocking(fakes, [READING.gpu]), clock=lambda: now[0])
    watch.follow((UUID,))
    await until(lambda: watch.readings)
    now[0] = STALE + 1
    assert watch.readings == ()
    continued.set()


def _values(reading: GpuReading) -> dict[str, Any]:
    return {name: getattr(reading, name) for name in GpuReading.__slots__}
