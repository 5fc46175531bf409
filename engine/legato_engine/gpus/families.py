"""Metric families of readings, with the prefix `legato_worker_gpu_`."""

from collections.abc import Callable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from legato_engine.gpus.interface import SLOWDOWN_REASONS, GpuReading

_PREFIX = "legato_worker_gpu_"
_GAUGES: dict[str, tuple[str, Callable[[GpuReading], float | None]]] = {
    "memory_used_bytes": ("Memory in use on the worker's GPU, by all programs.", lambda r: r.memory_used),
    "memory_total_bytes": ("Memory of the worker's GPU.", lambda r: r.memory_total),
    "utilization_ratio": ("Share of time in which a kernel ran on the GPU.", lambda r: r.utilization),
    "power_watts": ("Power that the GPU draws.", lambda r: r.power),
    "power_limit_watts": ("Power that the GPU may draw.", lambda r: r.power_limit),
    "temperature_celsius": ("Temperature of the GPU.", lambda r: r.temperature),
}


def families(readings: Sequence[GpuReading]) -> list[Metric]:
    """All families of these GPUs; none without GPUs."""
    if not readings:
        return []
    gauges = [_gauge(name, readings) for name in _GAUGES]
    return [*gauges, _slowdowns(readings), _ecc_errors(readings), _xid_errors(readings)]


def _gauge(name: str, readings: Sequence[GpuReading]) -> Metric:
    text, value_of = _GAUGES[name]
    family = GaugeMetricFamily(_PREFIX + name, text, labels=["gpu"])
    for reading in readings:
        if (value := value_of(reading)) is not None:
            family.add_metric([reading.gpu], float(value))
    return family


def _slowdowns(readings: Sequence[GpuReading]) -> Metric:
    text = "1 while the GPU lowers its clocks for this reason, a fault of cooling or power."
    family = GaugeMetricFamily(f"{_PREFIX}slowdown", text, labels=["gpu", "reason"])
    for reading in readings:
        if reading.slowdowns is not None:
            for reason in SLOWDOWN_REASONS:
                family.add_metric([reading.gpu, reason], float(reason in reading.slowdowns))
    return family


def _ecc_errors(readings: Sequence[GpuReading]) -> Metric:
    text = "Memory errors of the GPU since its driver was loaded."
    family = CounterMetricFamily(f"{_PREFIX}ecc_errors", text, labels=["gpu", "kind"])
    for reading in readings:
        for kind, count in reading.ecc_errors.items():
            family.add_metric([reading.gpu, kind], float(count))
    return family


def _xid_errors(readings: Sequence[GpuReading]) -> Metric:
    text = "Errors of the GPU that its driver logged since this worker started, by Xid."
    family = CounterMetricFamily(f"{_PREFIX}xid_errors", text, labels=["gpu", "xid"])
    for reading in readings:
        for xid, count in reading.xid_errors.items():
            family.add_metric([reading.gpu, str(xid)], float(count))
    return family
