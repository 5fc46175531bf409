"""`scripts/gpu` on a machine without a GPU: what can be seen of it here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
NEEDED = {"torch", "triton", "numpy"}

# Nothing else that this project depends on may be imported, as a bare machine has none of it.
_BLOCK = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
BLOCKED = {"msgspec", "numba", "psutil", "pydantic", "pytest", "safetensors", "gguf", "legato_protocol", "hypothesis"}


def _run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(_BLOCK.format(blocked=BLOCKED))
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    return subprocess.run(
        [ROOT / "scripts" / "gpu", *arguments], env=environment, capture_output=True, text=True, timeout=240
    )


def test_every_test_for_gpus_passes_in_the_interpreter_with_torch_triton_and_numpy_alone(tmp_path):
    results = tmp_path / "results.json"
    done = _run(tmp_path, "--interpreted", "--into", str(results))
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    files = {name.split(".")[0] for name, result in found["tests"].items() if result == "passed"}
    assert files == {path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert set(found["machine"]) >= NEEDED


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    done = _run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "scripts/gpu: torch finds no CUDA device here: run it on a machine with a GPU\n"


def test_the_benchmark_measures_every_layout_and_block_size(monkeypatch):
    """In the interpreter, with a timer for which all takes a second."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "gpu_kernels", raising=False)
    import gpu_kernels as benchmark

    def second(work):
        work()
        return 1.0

    sizes = benchmark.Sizes(rows=(2,), context=40, prompt=20, kv_heads=1, copied=1 << 10, dtype=torch.float16)
    bench = benchmark.Bench(torch.device("cpu"), "interpreter", 4, second, sizes)
    found = bench.measure()
    monkeypatch.delitem(sys.modules, "gpu_kernels")

    assert found[0] == {"what": "copy", "rate": 2048 / 1e9, "unit": "GB/s"}
    ours = [each["what"] for each in found if "blocks of" in each["what"]]
    assert len(set(ours)) == len(ours) == 2 * 2 * len(benchmark.LAYOUTS) * 3
    told = benchmark.table({"chip": "sm_90"}, found)
    assert len(told.splitlines()) == len(found) + 4
