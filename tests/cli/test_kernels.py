"""Lines of `legato doctor` about the kernels for this machine's GPUs, each kind of which is tried once."""

import os
from pathlib import Path

import pytest

from legato_cli import kernels, model
from legato_cli.gpus import Gpu

H200 = Gpu("NVIDIA H200", (9, 0), 132, 143_771 << 20, 227 << 10, dmabuf=True)
L4 = Gpu("NVIDIA L4", (8, 9), 58, 23_034 << 20, 99 << 10, dmabuf=True)
V100 = Gpu("Tesla V100", (7, 0), 80, 16_384 << 20, 96 << 10, dmabuf=False)


@pytest.mark.parametrize(
    ("problems", "line"),
    [
        ({"sm_90": ""}, "all of m compile for sm_90"),
        ({"sm_90": "", "sm_89": ""}, "all of m compile for sm_90, sm_89"),
        ({"sm_90": "", "sm_89": "_silu_mul: why"}, "not all of m compile for sm_89: _silu_mul: why"),
        ({"sm_90": "why", "sm_89": "too"}, "not all of m compile for sm_90: why; sm_89: too"),
    ],
)
def test_one_line_is_about_all_gpus(problems, line):
    assert kernels.told("m", problems) == f"kernels        {line}"


_RUN = kernels.subprocess.run


@pytest.fixture
def check(monkeypatch):
    """Checks these GPUs by a shell command: the problems, and the arguments of each check."""

    def run(script, *gpus):
        asked = []

        def started(command, *, env, **options):
            asked.append(command[3:])
            assert env["TRITON_INTERPRET"] == "0"
            return _RUN(["sh", "-c", script], env=env, **options)

        monkeypatch.setattr(kernels.subprocess, "run", started)
        environ = {**os.environ, "TRITON_INTERPRET": "1"}
        return kernels.problems(gpus, Path("/m"), "Float16", 32, environ), sorted(asked)

    return run


def test_each_kind_of_gpu_is_checked_once(check):
    problems, asked = check("true", H200, L4, H200)
    assert problems == {"sm_90": "", "sm_89": ""}
    assert asked == [
        ["/m", "Float16", "32", "sm_89", str(99 << 10), "58"],
        ["/m", "Float16", "32", "sm_90", str(227 << 10), "132"],
    ]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo choose; echo 'at 3:1:\n  x\nValueError(1)' >&2; exit 1", "choose: ValueError(1)"),
        ("echo; echo 'no such model' >&2; exit 1", "no such model"),
        ("kill -11 $$", "it ended without a word"),
        ("exec sleep 60", "the compiler did not end within 0.5 s"),
    ],
    ids=["a kernel", "no kernel", "crash", "hangs"],
)
def test_the_kernel_and_the_line_that_says_why_are_given(check, monkeypatch, script, problem):
    if "sleep" in script:
        monkeypatch.setattr(kernels, "LIMIT", 0.5)
    assert check(script, L4)[0] == {"sm_89": problem}


def test_a_gpu_that_kernels_do_not_run_on_is_not_checked(check):
    assert check("false", V100) == ({"sm_70": "kernels need compute capability 8.0 or higher"}, [])


def test_a_real_check_of_the_builtin_model_for_a_gpu_that_is_not_here():
    """Kernels that do not compile are in the tests of `kernel_check`; this one is refused before any."""
    path = model.resolve("builtin:smollm2-135m-instruct", print)
    (problem,) = kernels.problems([L4], path, "Auto", 8, os.environ).values()
    assert problem.startswith("a block size of 8 tokens is not supported")
