"""Results of simulations that nobody ran, with overrides."""

from typing import Any

from legato_simulator.engine.result import Quantiles, Result, Sample


def sample(at: float, **changes: Any) -> Sample:
    quiet = {
        "arrivals_per_second": 4.0,
        "tokens_per_second": 16_000.0,
        "queue_tokens": 1000,
        "kv_usage": 0.4,
        "desired": {"prefill": 2, "decode": 3},
        "ready": {"prefill": 2, "decode": 3},
        "attainment_so_far": 1.0,
    }
    return Sample(at, **(quiet | changes))


def result(scaler: str = "legato", workload: str = "steady", **changes: Any) -> Result:
    """Ten minutes in which all was well."""
    fields = {
        "attainment": 0.97,
        "gpu_hours": 1.0,
        "ttft": Quantiles(0.4, 0.9, 1.5),
        "tpot": Quantiles(0.02, 0.03, 0.04),
        "reversals": {"prefill": 0.0, "decode": 0.0},
        "timeline": tuple(sample(float(at)) for at in range(0, 600, 30)),
        "offered": 2400,
        "finished": 2400,
        "missed_ttft": 60,
        "missed_tpot": 12,
        "refused": 0,
        "unfinished": 0,
        "seconds": 600.0,
    }
    return Result(scaler, workload, **(fields | changes))
