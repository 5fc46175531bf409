"""What `legato doctor` tells of the kernels for this machine's GPUs, each kind of which is tried once."""

import os
from pathlib import Path

import pytest

from legato_cli import kernels, model
from legato_cli.gpus import Gpu

H200 = Gpu("NVIDIA H200", (9, 0), 132, 143_771 << 20, 227 << 10, dmabuf=True)
L4 = Gpu("NVIDIA L4", (8, 9), 58, 23_034 << 20, 99 << 10, dmabuf=True)
SMALL = Gpu("A GPU", (8, 9), 58, 23_034 << 20, 4 << 10, dmabuf=True)
V100 = Gpu("Tesla V100", (7, 0), 80, 16_384 << 20, 96 << 10, dmabuf=False)


@pytest.mark.parametrize(
    ("problems", "told"),
    [
        ({"sm_90": ""}, "all of m compile for sm_90"),
        ({"sm_90": "", "sm_89": ""}, "all of m compile for sm_90, sm_89"),
        ({"sm_90": "", "sm_89": "_silu_mul: why"}, "not all of m compile for sm_89: _silu_mul: why"),
        ({"sm_90": "why", "sm_89": "too"}, "not all of m compile for sm_90: why; sm_89: too"),
    ],
)
def test_one_line_tells_of_all_gpus(problems, told):
    assert kernels.told("m", problems) == f"kernels        {told}"


@pytest.fixture
def checked(monkeypatch):
    """The arguments of all checks, each of which says what a shell command does."""
    found = []

    def run(script):
        def started(command, *, env, **options):
            found.append(command[3:])
            assert env["TRITON_INTERPRET"] == "0"
            return _RUN(["sh", "-c", script], env=env, **options)

        monkeypatch.setattr(kernels.subprocess, "run", started)
        return found

    return run


_RUN = kernels.subprocess.run


def _problems(*gpus):
    return kernels.problems(gpus, Path("/m"), "Float16", 32, {**os.environ, "TRITON_INTERPRET": "1"})


def test_each_kind_of_gpu_is_checked_once(checked):
    found = checked("true")
    assert _problems(H200, L4, H200) == {"sm_90": "", "sm_89": ""}
    assert sorted(found) == [
        ["/m", "Float16", "32", "sm_89", str(99 << 10), "58"],
        ["/m", "Float16", "32", "sm_90", str(227 << 10), "132"],
    ]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo choose; echo 'at 3:1:\n  x\nValueError(1)' >&2; exit 1", "choose: ValueError(1)"),
        ("echo; echo 'no such model' >&2; exit 1", "no such model"),
        ("kill -11 $$", "it ended without a word"),
    ],
    ids=["a kernel", "no kernel", "crash"],
)
def test_the_kernel_and_the_line_that_says_why_are_told(checked, script, told):
    checked(script)
    assert _problems(L4) == {"sm_89": told}


def test_a_gpu_that_kernels_do_not_run_on_is_not_checked(checked):
    found = checked("false")
    assert _problems(V100) == {"sm_70": "kernels need compute capability 8.0 or higher"}
    assert found == []


def test_a_real_check_of_the_builtin_model_for_a_gpu_that_is_not_here():
    path = model.resolve("builtin:smollm2-135m-instruct", print)
    (problem,) = kernels.problems([SMALL], path, "Auto", 64, os.environ).values()
    assert problem.startswith("attend_items: Triton ")
    assert "Hardware limit: 4096" in problem


def test_a_compiler_that_hangs_is_told(checked, monkeypatch):
    checked("exec sleep 60")
    monkeypatch.setattr(kernels, "LIMIT", 0.2)
    assert _problems(H200) == {"sm_90": "the compiler did not end within 0.2 s"}
