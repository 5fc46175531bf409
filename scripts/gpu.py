"""`scripts/gpu`: runs tests/gpu without pytest, then the benchmarks on GPUs. Needs torch, triton and numpy only."""

import argparse
import contextlib
import datetime
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FAILED, NO_GPU = 1, 2
TESTS, KERNELS, MODEL = PARTS = ("tests", "kernels", "model")
SHAPES = ("llama-3-8b", "qwen3-30b-a3b", *(TINY := ("tiny", "tiny-experts")))


class Results:
    """The results so far, also in the file after each of them, because a later part may fail or be killed."""

    def __init__(self, into: Path, machine: dict[str, Any]) -> None:
        self.into = into
        self.machine = machine
        self.tests: dict[str, str] = {}  # "passed", or what went wrong
        self.benchmarks: dict[str, list[dict[str, Any]]] = {}
        self.failures: dict[str, str] = {}  # of benchmarks
        self._lock = threading.Lock()
        into.parent.mkdir(parents=True, exist_ok=True)
        self._save()

    @property
    def failed(self) -> list[str]:
        """Names of failed tests, failed benchmarks and wrong results. A low speed is not a failure."""
        wrong = [each["what"] for figures in self.benchmarks.values() for each in figures if each.get("equal") is False]
        return [*(name for name, result in self.tests.items() if result != "passed"), *self.failures, *wrong]

    def add_test(self, name: str, result: str) -> None:
        with self._lock:
            self.tests[name] = result
            self._save()
        if result != "passed":
            print(f"FAILED {name}\n{result}", file=sys.stderr, flush=True)

    def add_figure(self, part: str, figure: dict[str, Any]) -> None:
        self.benchmarks.setdefault(part, []).append(figure)
        self._save()

    def add_failure(self, part: str, failure: str) -> None:
        self.failures[part] = failure
        self._save()
        print(f"FAILED {part}\n{failure}", file=sys.stderr, flush=True)

    def _save(self) -> None:
        names = ("machine", "tests", "benchmarks", "failures")
        written = self.into.with_name(self.into.name + ".part")
        written.write_text(json.dumps({name: getattr(self, name) for name in names}, indent=2) + "\n")
        written.replace(self.into)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=__doc__)
    for part in PARTS:
        parser.add_argument(f"--{part}", action="append_const", dest="parts", const=part, help=f"{part}, and not all")
    parser.add_argument("--match", default="", help="run only tests with this text in their name")
    parser.add_argument("--file", help="run only the tests of this file, in this process")
    parser.add_argument("--shape", choices=SHAPES, help="of the model (llama-3-8b)")
    parser.add_argument("--interpreted", action="store_true", help="tests and a tiny model on the CPU")
    parser.add_argument("--into", type=Path, help="file for the results (build/gpu/CHIP.json)")
    chosen = parser.parse_args()
    parts = chosen.parts or [part for part in PARTS if not (chosen.interpreted and part == KERNELS)]
    if chosen.interpreted and (KERNELS in parts or chosen.shape not in (None, *TINY)):
        parser.error("--interpreted is for tests and for tiny models: all else would take days")
    os.environ["TRITON_INTERPRET"] = str(int(chosen.interpreted))  # read when a kernel is defined
    import places

    place = places.here()
    if place is None:
        print("scripts/gpu: torch finds no CUDA device here: run it on a machine with a GPU", file=sys.stderr)
        return NO_GPU
    into = chosen.into or ROOT / "build" / "gpu" / f"{'interpreted' if chosen.interpreted else place.chip}.json"
    results = Results(into, _machine(place))
    if TESTS in parts:
        files = (
            [chosen.file] if chosen.file else sorted(path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
        )
        if chosen.file or chosen.interpreted:
            _run_tests(place, files, chosen.match, results)
        else:
            _run_files(files, ["--match", chosen.match], results)
    if KERNELS in parts:
        _measure(KERNELS, "attention", lambda benchmark: benchmark.on_gpu(), results)
    if MODEL in parts:
        shape = chosen.shape or (TINY[0] if chosen.interpreted else SHAPES[0])
        _measure(MODEL, "model", lambda benchmark: _model(benchmark, place, shape), results)
    passed = sum(result == "passed" for result in results.tests.values())
    print(f"{passed} tests passed, {len(results.failed)} failures; results in {results.into}")
    return FAILED if results.failed else 0


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


def _run_files(files: Sequence[str], arguments: Sequence[str], results: Results) -> None:
    """Runs each file in a process of its own, because the compiler takes most of the time and has one thread."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(files)) as pool:
        started = [pool.submit(_run_file, file, arguments, Path(folder, f"{file}.json"), results) for file in files]
        for each in started:
            each.result()


def _run_file(file: str, arguments: Sequence[str], into: Path, results: Results) -> None:
    """Runs the tests of one file, and adds each result when it is there."""
    command = [sys.executable, __file__, "--tests", "--file", file, *arguments, "--into", str(into)]
    seen: set[str] = set()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        ended = False
        while not ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            ended = process.returncode is not None
            finished = json.loads(into.read_text())["tests"] if into.exists() else {}
            for name in finished.keys() - seen:
                results.add_test(name, finished[name])
            seen |= finished.keys()
        if process.returncode not in (0, FAILED):
            said.seek(0)
            results.add_test(file, f"its process ended with {process.returncode}: {said.read()[-2000:]}")


def _run_tests(place: Any, files: Sequence[str], match: str, results: Results) -> None:
    """Each test with each combination of its arguments."""
    import torch

    for name, test, arguments in _tests(place, files, results):
        if match not in name:
            continue
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            test(place=place, **arguments)
            results.add_test(name, "passed")
        except Exception:
            results.add_test(name, traceback.format_exc())
        if time.monotonic() - began > 5:
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


def _tests(
    place: Any, files: Sequence[str], results: Results
) -> Iterator[tuple[str, Callable[..., None], dict[str, Any]]]:
    """A module that cannot be imported is a failed test."""
    import places

    for file in files:
        try:
            module = importlib.import_module(file)
        except Exception:
            results.add_test(file, traceback.format_exc())
            continue
        for name, test in vars(module).items():
            if name.startswith("test_"):
                for arguments in places.combinations(test, place):
                    said = ", ".join(f"{key}={value}" for key, value in arguments.items())
                    yield f"{file}.{name}[{said}]", test, arguments


def _measure(part: str, name: str, make: Callable[[Any], Any], results: Results) -> None:
    """Adds the figures of a benchmark one by one, so that those before a failure are kept."""
    try:
        benchmark = importlib.import_module(name)
        for figure in make(benchmark).figures():
            results.add_figure(part, figure)
    except MemoryError as error:  # its text has the required memory
        results.add_failure(part, str(error))
    except Exception:
        results.add_failure(part, traceback.format_exc())
    if figures := results.benchmarks.get(part):
        print(benchmark.table(results.machine, figures), flush=True)


def _model(benchmark: Any, place: Any, shape: str) -> Any:
    return benchmark.interpreted(shape) if place.small else benchmark.on_gpu(shape)


if __name__ == "__main__":
    sys.exit(main())
