"""`scripts/gpu` on a machine without a GPU: what can be seen of it here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import budget
import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(900)  # kernels and a whole model in the interpreter, on a machine that others share
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
sys.path.append({support!r})
import interpreted_bfloat16
import quick_interpreter

quick_interpreter.use()
interpreted_bfloat16.use()
"""
BLOCKED = {"msgspec", "numba", "psutil", "pydantic", "pytest", "safetensors", "gguf", "legato_protocol", "hypothesis"}


def _run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(_BLOCK.format(blocked=BLOCKED, support=str(ROOT / "tests" / "support")))
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    return subprocess.run(
        [ROOT / "scripts" / "gpu", *arguments], env=environment, capture_output=True, text=True, timeout=800
    )


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("gpu_script", ROOT / "scripts" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def results(script, tmp_path):
    return script.Results(tmp_path / "made" / "results.json", {"chip": "sm_90"})


def test_every_file_for_gpus_is_imported_with_torch_triton_and_numpy_only(tmp_path):
    """And the tests of step inputs pass in the interpreter."""
    results = tmp_path / "results.json"
    done = _run(tmp_path, "--interpreted", "--tests", "--match", "test_step_inputs", "--into", str(results))
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    assert {name.split(".")[0] for name in found["tests"]} == {"test_step_inputs"}
    assert set(found["machine"]) >= NEEDED


@pytest.mark.skipif(budget.FACTOR == 1, reason="half a minute in the interpreter: only with LEGATO_TEST_BUDGET")
def test_every_test_and_benchmark_for_gpus_passes_in_the_interpreter(tmp_path):
    results = tmp_path / "results.json"
    done = _run(tmp_path, "--interpreted", "--into", str(results))
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    files = {name.split(".")[0] for name, result in found["tests"].items() if result == "passed"}
    assert files == {path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert found["failures"] == {}
    equal = [each["equal"] for each in found["benchmarks"]["model"] if "equal" in each]
    assert equal == [True] * 6
    assert {each["aim"] for each in found["benchmarks"]["model"] if "aim" in each} == {
        "at least 70%", "at most 5%", "at least 50%", "at least 87%", "at most 1.15", "at least 1.55", "at least 1.4",
    }  # fmt: skip


def test_without_a_gpu_it_says_so(script, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # which it sets
    monkeypatch.setitem(sys.modules, "places", SimpleNamespace(here=lambda: None))
    monkeypatch.setattr(sys, "argv", ["scripts/gpu"])
    assert script.main() == 2
    told = "scripts/gpu: torch finds no CUDA device here: run it on a machine with a GPU\n"
    assert capsys.readouterr() == ("", told)


def test_a_file_whose_process_dies_is_a_failure(script, results):
    script._run_files(["test_step_inputs"], ["--no-such-flag"], results)
    assert results.failed == ["test_step_inputs"]
    assert "its process ended with 2: usage: scripts/gpu" in results.tests["test_step_inputs"]
