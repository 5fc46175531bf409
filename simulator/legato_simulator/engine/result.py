"""What a simulation found: the figures of a whole run, and its course. Frozen, and all of it numbers."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of a latency, in seconds, by nearest rank; 0 of nothing."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. Rates are over the time since the sample before; pools are `prefill` and `decode`."""

    at: float  # seconds from the beginning
    arrivals_per_second: float  # requests
    tokens_per_second: float  # prompt tokens that arrived
    queue_tokens: int  # uncached prompt tokens that are queued or being prefilled
    kv_usage: float  # used part of the KV of decode workers that serve, 0 to 1
    wish: Mapping[str, int]  # by the scaler, within the manifest's limits
    ready: Mapping[str, int]  # workers that serve
    attainment_so_far: float  # of the requests that have ended; 1 before any has


@dataclass(frozen=True, slots=True)
class Result:
    """One workload under one scaler."""

    scaler: str
    workload: str
    attainment: float  # good ÷ offered, 0 to 1: TTFT from arrival and mean TPOT both within the objectives
    gpu_hours: float  # from a worker's creation to its deletion × its GPUs; worker-hours where a worker has none
    ttft: Quantiles
    tpot: Quantiles
    reversals: Mapping[str, float]  # by pool, an hour: wishes opposite to one less than 600 s before
    timeline: tuple[Sample, ...]
    offered: int  # requests
    finished: int
    refused: int  # that no worker can hold
    unfinished: int  # when the simulation ended; offered = finished + refused + unfinished
    seconds: float  # simulated
