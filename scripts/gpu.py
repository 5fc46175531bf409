"""`scripts/gpu`: runs tests/gpu without pytest, then the kernels' benchmark. Needs torch, triton and numpy only."""

import argparse
import datetime
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FAILED, NO_GPU = 1, 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=__doc__)
    parser.add_argument("--tests", action="store_true", help="tests only")
    parser.add_argument("--interpreted", action="store_true", help="tests only, in small sizes on the CPU")
    parser.add_argument("--into", type=Path, help="file for the results (build/gpu/CHIP.json)")
    chosen = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = str(int(chosen.interpreted))  # read when a kernel is defined
    import places

    place = places.here()
    if place is None:
        print("scripts/gpu: torch finds no CUDA device here: run it on a machine with a GPU", file=sys.stderr)
        return NO_GPU
    found: dict[str, Any] = {"machine": _machine(place), "tests": _run_tests(place)}
    failed = [name for name, result in found["tests"].items() if result != "passed"]
    if not (chosen.tests or chosen.interpreted):
        import gpu_kernels

        found["benchmarks"] = gpu_kernels.on_gpu().measure()
        print(gpu_kernels.table(found["machine"], found["benchmarks"]))
    into = chosen.into or ROOT / "build" / "gpu" / f"{'interpreted' if chosen.interpreted else place.chip}.json"
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{len(found['tests']) - len(failed)} passed, {len(failed)} failed; results in {into}")
    return FAILED if failed else 0


def _machine(place: Any) -> dict[str, Any]:
    import numpy
    import torch
    import triton

    return {
        "date": datetime.date.today().isoformat(),
        "chip": place.chip,
        "device": "Triton's interpreter" if place.small else torch.cuda.get_device_name(place.device),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "numpy": numpy.__version__,
    }


def _run_tests(place: Any) -> dict[str, str]:
    """Each test with each combination of its arguments: "passed", or what went wrong."""
    import torch

    results = {}
    for name, test, arguments in _tests(place):
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            test(place=place, **arguments)
            results[name] = "passed"
        except Exception:
            results[name] = traceback.format_exc()
            print(f"FAILED {name}\n{results[name]}", file=sys.stderr)
        if time.monotonic() - began > 5:
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return results


def _tests(place: Any) -> Iterator[tuple[str, Callable[..., None], dict[str, Any]]]:
    import places

    for file in sorted((ROOT / "tests" / "gpu").glob("test_*.py")):
        for name, test in vars(importlib.import_module(file.stem)).items():
            if name.startswith("test_"):
                for arguments in places.combinations(test, place):
                    said = ", ".join(f"{key}={value}" for key, value in arguments.items())
                    yield f"{file.stem}.{name}[{said}]", test, arguments


if __name__ == "__main__":
    sys.exit(main())
