"""Kernels are compiled by several processes, each once; what one that fails leaves is left to the worker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import shared_compilation
import tiny_llama
import uninterpreted

from legato_engine import compilers
from legato_engine.compilers import CompileProcesses
from legato_engine.kernels.gpu.chips import CHIPS
from legato_engine.runner import compilation
from legato_engine.settings import WorkerSettings
from legato_engine.weights.opening import open_weights

VARIABLES = {"PYTHONPATH": os.pathsep.join([str(Path(shared_compilation.__file__).parent), *sys.path])}


def compiled(kernels: str, count: int) -> list[str]:
    with CompileProcesses("shared_compilation", [kernels], count, VARIABLES) as processes:
        processes.finish(lambda: None)
        return sorted(path.stem for path in Path(processes._folder.name).glob("*.compiled"))


def test_a_process_that_dies_is_reported_with_its_kernel_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    assert compiled("one two", 2) == ["one", "two"]
    assert caplog.text == ""
    assert compiled("deadly one two", 2) == ["one", "two"]
    assert "of 2 that compile kernels ended with code -11 at deadly (no message)" in caplog.text


def test_processes_end_when_the_start_fails() -> None:
    with CompileProcesses("shared_compilation", ["endless"], 1, VARIABLES) as processes:
        (process,) = processes._running.values()
    assert process.returncode == -9


# Compiles two kernels by processes, and prints if this process compiled any, how often it called them, and if there
# were processes.
PROGRAM = """
import numpy as np
from numba.core import event
from legato_engine import compilers
from legato_engine.kernels.cpu import reduction
from legato_engine.kernels.cpu.missing import compile_missing
from legato_engine.kernels.cpu.rms_norm import norm_head
from legato_engine.kernels.cpu.silu_mul import silu_mul_row

asked = []
compilers.processes = lambda kernels: asked.append(kernels) or min(kernels, 2)
compiled = event.RecordingListener()
event.register("numba:compile", compiled)
calls, x, out = [], np.ones(32, np.float32), np.zeros(16, np.float32)
counters, total = np.zeros(reduction.LINE, np.int64), np.zeros(4, np.float32)
def work():
    calls.append(1)
    reduction.arrive(counters, 0, 1, len(calls))  # other ranks would wait for ever for one that is only listed
    reduction.add(np.ones((2, 4), np.float32), 4, total)
    assert (counters[0], total[0]) == (len(calls), 2)
    silu_mul_row(x, out)
    norm_head(x, np.full(32, 3, np.float32), np.float32(0))
compile_missing(work, lambda: None)
assert x[0] == 3 and out.any()
print(len(compiled.buffer) > 0, len(calls), len(asked))
"""


def test_a_worker_compiles_no_cpu_kernel_itself_and_with_all_in_the_cache_starts_no_process(tmp_path: Path) -> None:
    def run(cache: Path) -> str:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert [run(tmp_path), run(tmp_path)] == ["False 2 1\n", "False 1 0\n"]
    (tmp_path / "file").touch()
    assert run(tmp_path / "file") == "True 2 0\n"  # nothing can be kept: processes could not share what they compile


def test_steps_without_results_list_the_kernels_of_each_path() -> None:
    listed = uninterpreted.call(shared_compilation.listed_steps)
    assert all(count >= 6 for count in listed.values()), listed


def test_processes_for_a_gpu_share_its_kernels(tmp_path: Path) -> None:
    model, claims, cache = (tmp_path / name for name in ("model", "claims", "cache"))
    model.mkdir()
    claims.mkdir()
    tiny_llama.write(model)
    given = str(model), str(claims), str(cache)
    code, kernels = uninterpreted.call(shared_compilation.compile_share, *given)
    assert (code, "attend_items" in kernels) == (0, True)
    assert len([entry for entry in cache.iterdir() if entry.name.startswith("complete-")]) == 0
    assert uninterpreted.call(shared_compilation.compile_share, *given) == [0, []]


def test_a_worker_whose_gpu_kernels_were_compiled_once_starts_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llama.write(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    checkpoint, started, done = open_weights(tmp_path), list[list[str]](), list[str]()
    settings = WorkerSettings("unified", "u0", str(tmp_path), device="cuda")

    class Noted(CompileProcesses):
        def __init__(self, module: str, arguments: list[str], *_: object) -> None:
            started.append(arguments)
            super().__init__("shared_compilation", [""], 0)

    monkeypatch.setattr(compilation, "CompileProcesses", Noted)
    monkeypatch.setattr(compilers, "processes", lambda _kernels: 2)
    for _ in range(2):
        with compilation.OnGpu(settings, checkpoint, "sm_90", CHIPS["sm_90"]) as kernels:
            kernels.warm_up(lambda: done.append("worked"), lambda: None)
    limits = [str(each) for each in CHIPS["sm_90"]]
    assert started == [[str(tmp_path), "None", settings.dtype, settings.kv_cache_dtype, "64", "sm_90", *limits]]
    assert done == ["worked"] * 2
