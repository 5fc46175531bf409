"""Compiled kernels are shared by processes and clones, and compiled once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import legato_engine
from legato_engine.kernels.cpu import compiled_cache

# Computes a gate, and prints how many kernels it compiled and how many it found.
PROGRAM = """
import numpy as np
from numba.core import event
from legato_engine.kernels.cpu.silu_mul import silu_mul_row

compiled = event.RecordingListener()
event.register("numba:compile", compiled)
silu_mul_row(np.ones(64, np.float32), out := np.zeros(32, np.uint16))
assert out.any()
print(len(compiled.buffer) // 2)
"""


def start(cache: Path, engine: Path | None = None, **variables: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), **variables}
    if engine is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(engine), environment.get("PYTHONPATH", "")])
    command, pipe = [sys.executable, "-c", PROGRAM], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def compiled(process: "subprocess.Popen[str]", warning: str = "") -> int:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert warning in errors
    return int(output)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_each_kernel_is_compiled_by_one_of_the_processes_that_need_it(cache: Path) -> None:
    both = [start(cache) for _ in range(2)]
    assert sum(compiled(process) for process in both) == 2  # the kernel and its helper


def test_a_clone_elsewhere_finds_what_was_compiled_until_a_kernel_changes(cache: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(legato_engine.__file__).parent, clone / "legato_engine", ignore=ignored)
    kernels = clone / "legato_engine" / "kernels"
    _change(kernels / "gpu" / "launcher.py")
    assert compiled(start(cache, engine=clone)) == 0
    _change(kernels / "cpu" / "simd" / "scalar.py")  # other kernels call its functions
    assert compiled(start(cache, engine=clone)) > 0


def _change(path: Path) -> None:
    with path.open("a") as file:
        file.write("# changed\n")


def test_what_an_image_was_built_with_is_copied_to_where_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels" / "abc").mkdir(parents=True)
    (tmp_path / "kernels" / "abc" / "kernel.nbc").write_text("code")
    monkeypatch.chdir(tmp_path)  # of no meaning to a worker outside of images
    compiled_cache._make(tmp_path / "other" / "abc")
    assert not [*(tmp_path / "other" / "abc").iterdir()]
    monkeypatch.setenv("LEGATO_PREPARED", str(tmp_path))
    compiled_cache._make(tmp_path / "cache" / "abc")
    assert (tmp_path / "cache" / "abc" / "kernel.nbc").read_text() == "code"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["abc"]


def test_without_a_folder_that_can_be_written_kernels_are_compiled_and_a_warning_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = start(tmp_path / "file", TMPDIR=str(tmp_path))
    assert compiled(process, f"compiled kernels cannot be kept in {tmp_path / 'file'}") > 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
