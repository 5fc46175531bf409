"""The result of a simulation: the figures of the whole run, and samples over time."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of a latency in seconds, by nearest rank; 0 without values."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. Rates are over the time since the previous sample; pools are `prefill` and `decode`."""

    at: float  # seconds from the beginning
    arrivals_per_second: float  # requests
    tokens_per_second: float  # prompt tokens that arrived
    queue_tokens: int  # uncached prompt tokens that are queued or being prefilled
    kv_usage: float  # used share of the KV of ready decode workers, 0 to 1
    desired: Mapping[str, int]  # workers, within the manifest's bounds
    ready: Mapping[str, int]  # ready workers
    attainment_so_far: float  # of the requests that have ended; 1 before the first


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one workload under one scaler."""

    scaler: str
    workload: str
    attainment: float  # good ÷ offered, 0 to 1: TTFT from arrival and mean TPOT both within the objectives
    gpu_hours: float  # from a worker's creation to its deletion × its GPUs; worker-hours if it has none
    ttft: Quantiles
    tpot: Quantiles
    reversals: Mapping[
        str, float
    ]  # by pool, per hour: changes of the desired size opposite to one less than 600 s before
    timeline: tuple[Sample, ...]
    offered: int  # requests
    finished: int
    missed_ttft: int  # of the finished requests
    missed_tpot: int
    refused: int  # requests that nobody served
    unfinished: int  # when the simulation ended; offered = finished + refused + unfinished
    seconds: float  # simulated
