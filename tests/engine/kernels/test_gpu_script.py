"""`scripts/gpu` on a machine without a GPU: what can be seen of it here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

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
import quick_interpreter

quick_interpreter.use()
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


@pytest.fixture
def benchmarks(monkeypatch):
    """Imports its modules by their names, which other folders use, too."""
    for folder in ("tests/gpu", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    with mock.patch.dict(sys.modules):
        sys.modules.pop("gpu_kernels", None)
        yield importlib.import_module


def test_every_test_for_gpus_passes_in_the_interpreter_with_torch_triton_and_numpy_alone(tmp_path):
    results = tmp_path / "results.json"
    done = _run(tmp_path, "--interpreted", "--into", str(results))
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text())
    files = {name.split(".")[0] for name, result in found["tests"].items() if result == "passed"}
    assert files == {path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert set(found["machine"]) >= NEEDED
    assert found["failures"] == {}
    equal = [each["equal"] for each in found["benchmarks"]["model"] if "equal" in each]
    assert equal == [True, True]
    assert {each["aim"] for each in found["benchmarks"]["model"] if "aim" in each} == {
        "at least 70%", "at most 5%", "at least 50%",
    }  # fmt: skip


def test_without_a_gpu_it_says_so(script, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # which it sets
    monkeypatch.setitem(sys.modules, "places", SimpleNamespace(here=lambda: None))
    monkeypatch.setattr(sys, "argv", ["scripts/gpu"])
    assert script.main() == 2
    told = "scripts/gpu: torch finds no CUDA device here: run it on a machine with a GPU\n"
    assert capsys.readouterr() == ("", told)


def test_the_benchmark_measures_every_layout_and_block_size(benchmarks):
    """In the interpreter, with a timer for which all takes a second."""
    benchmark = benchmarks("gpu_kernels")

    def second(work):
        work()
        return 1.0

    sizes = benchmark.Sizes(rows=(2,), context=40, prompt=20, kv_heads=1, copied=1 << 10, dtype=torch.float16)
    figures = benchmark.Bench(torch.device("cpu"), "interpreter", 4, second, sizes).measure()

    assert figures[0] == {"what": "copy", "rate": 2048 / 1e9, "unit": "GB/s"}
    ours = [each["what"] for each in figures if "blocks of" in each["what"]]
    assert len(set(ours)) == len(ours) == 2 * 2 * len(benchmark.LAYOUTS) * 3
    assert len(benchmark.table({"chip": "sm_90"}, figures).splitlines()) == len(figures) + 4


def test_files_are_run_in_processes_of_their_own_and_one_that_dies_is_a_failure(script, results, monkeypatch):
    folders = [str(ROOT / folder) for folder in ("engine", "tests/gpu", "benchmarks")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    script._run_files(["test_step_inputs"], ["--interpreted"], results)
    assert [each for each in results.tests if each.startswith("test_step_inputs.test_expanded_rows[")]
    assert results.failed == []
    script._run_files(["test_step_inputs"], ["--no-such-flag"], results)
    assert results.failed == ["test_step_inputs"]
    assert "its process ended with 2: usage: scripts/gpu" in results.tests["test_step_inputs"]


@pytest.mark.parametrize("failure", [RuntimeError, MemoryError])
def test_results_are_in_the_file_as_they_come_also_those_before_a_failure(
    script, results, monkeypatch, capsys, failure
):
    def figures():
        yield {"what": "copy"}
        assert written()["benchmarks"] == {"model": [{"what": "copy"}]}
        raise failure("broken")

    def written():
        return json.loads(results.into.read_text())

    assert written()["tests"] == {}
    results.add_test("one", "Traceback")
    assert written()["tests"] == {"one": "Traceback"}
    assert capsys.readouterr().err == "FAILED one\nTraceback\n"
    benchmark = SimpleNamespace(table=lambda machine, figures: f"{len(figures)} figures")
    monkeypatch.setitem(sys.modules, "a_benchmark", benchmark)
    script._measure("model", "a_benchmark", lambda _: SimpleNamespace(figures=figures), results)
    assert written()["benchmarks"] == {"model": [{"what": "copy"}]}
    assert "broken" in written()["failures"]["model"]
    assert results.failed == ["one", "model"]


def test_a_replay_that_differs_is_a_failure_and_a_missed_speed_is_not(results):
    results.add_figure("model", {"what": "decode", "value": 1.0, "aim": "at least 70%", "met": False})
    results.add_figure("model", {"what": "replay equals eager", "equal": True})
    assert results.failed == []
    results.add_figure("model", {"what": "replay equals eager, 64 rows", "equal": False})
    assert results.failed == ["replay equals eager, 64 rows"]
