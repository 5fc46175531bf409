"""The cells of `plan_against_measured.py`: workloads, kinds of workers with the objectives of a service, manifests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legato_engine.runner.profile import StepTimes

NAME = "planned"
MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Hardware:
    """A kind of worker. Without `step`, it computes, and its profile has to be measured. Times in seconds."""

    ttft: float  # objectives
    tpot: float
    step: StepTimes | None = None  # of paced workers


@dataclass(frozen=True)
class Cells:
    """All workloads on all kinds of workers. Workloads are mean tokens of prompts and answers."""

    workloads: Mapping[str, tuple[int, int]]
    hardware: Mapping[str, Hardware]
    gpus: int  # most workers of a shape
    busy: float  # unified workers that the mean load keeps busy

    @property
    def names(self) -> list[str]:
        return [f"{name}:{kind}" for name in self.workloads for kind in self.hardware]


PACED = Cells(
    {"chat": (300, 60), "code": (600, 16), "documents": (1500, 30), "essays": (100, 150)},
    {
        "balanced": Hardware(1.0, 0.030, StepTimes(0.010, 0.0002, 1e-7, 0.0002, 0)),
        "slow-prompts": Hardware(2.0, 0.025, StepTimes(0.006, 0.0001, 1e-7, 0.0006, 0)),
        "slow-steps": Hardware(1.0, 0.050, StepTimes(0.025, 0.0004, 2e-7, 0.0001, 0)),
    },
    gpus=4,
    busy=1.4,
)
CPU = Cells(
    {"code": (150, 12), "documents": (200, 20), "essays": (60, 60)},
    {"tight": Hardware(5.0, 0.030), "loose": Hardware(3.0, 0.060)},
    gpus=2,
    busy=1.0,
)
KINDS = {"paced": PACED, "cpu": CPU}


def manifest(hardware: Hardware, profile: Path | None, slow: float = 1.0) -> dict[str, Any]:
    """Returns a manifest of paced workers with `profile`, or of workers that compute with a core and a thread each."""
    if profile is None:
        engine, pool = {}, {"replicas": 1, "resources": {"requests": {"cpu": "1"}}}
    else:
        engine, pool = {"runner": "Paced", "profile": str(profile), "chunkTokens": 512}, {"replicas": 1}
    return {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": {"builtin": MODEL}, "servedName": NAME, "maxLength": 8192},
            "engine": engine,
            "slo": {"ttft": f"{1000 * hardware.ttft * slow:.0f}ms", "tpot": f"{1000 * hardware.tpot * slow:.0f}ms"},
            "prefill": dict(pool),
            "decode": dict(pool),
            "scaling": {"mode": "Fixed"},
        },
    }
