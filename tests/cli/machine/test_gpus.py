"""Lines of `legato doctor` about GPUs, their kernels and hand-offs follow from facts, which are found."""

import os
from pathlib import Path

import pytest

from legato_cli.machine import gpus, kernels
from legato_cli.machine.gpus import Facts, Gpu
from legato_cli.machine.handoffs import Handoffs
from legato_cli.machine.loopback import Loopback
from legato_cli.models import model
from legato_engine.transfer.link import LinkError

H200 = Gpu("NVIDIA H200", (9, 0), 132, 143_771 << 20, 227 << 10, dmabuf=True)
L4 = Gpu("NVIDIA L4", (8, 9), 58, 23_034 << 20, 99 << 10, dmabuf=True)
V100 = Gpu("Tesla V100", (7, 0), 80, 16_384 << 20, 96 << 10, dmabuf=False)
WITHOUT_DMABUF = Gpu("NVIDIA A10", (8, 6), 72, 22_515 << 20, 99 << 10, dmabuf=False)
GOOD = {
    "driver": "580.65.06",
    "driver_cuda": 13000,
    "torch_cuda": "13.0",
    "gpus": (H200,),
    "triton": "3.7.1",
    "cache": "/cache/triton",
    "peer_memory": True,
    "ucx_has_cuda": True,
}


class Driver:
    """libcuda with this number of devices, or one that cannot begin."""

    def __init__(self, devices, error=0):
        self._devices, self._error = devices, error

    def cuInit(self, flags):
        return self._error

    def cuDeviceGetCount(self, count):
        count._obj.value = self._devices
        return 0


@pytest.mark.parametrize(
    ("driver", "version", "visible", "names"),
    [
        (None, "cu130", None, ()),
        (Driver(0), "cu130", None, ()),
        (Driver(8, error=100), "cu130", None, ()),
        (Driver(2), "cpu", None, ()),
        (Driver(2), "cu130", None, ("0", "1")),
        (Driver(2), "cu130", "3, GPU-7f", ("3", "GPU-7f")),
        (Driver(1), "cu130", "3,99,1", ("3",)),
    ],
    ids=["no driver", "no device", "broken", "a torch for CPUs", "all", "some", "until the first unknown one"],
)
def test_visible_gpus_have_the_names_that_programs_get(monkeypatch, driver, version, visible, names):
    monkeypatch.setattr(gpus, "_libcuda", lambda: driver)
    monkeypatch.setattr(gpus, "_version", lambda _: f"2.13.0+{version}")
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": visible} if visible else {}) == names


NO_DMABUF = {"gpus": (H200, WITHOUT_DMABUF)}
READ_ONLY = "/cache/triton: not writable, so no kernel can be launched: set TRITON_CACHE_DIR"
NOT_TO_DEVICES = "not usable: neither the kernel module nvidia_peermem nor dmabuf of the driver"
NO_RDMA = {"ucx_has_cuda": False, "missing_for_rdma": ("no device", "no verbs")}


@pytest.mark.parametrize(
    ("title", "facts", "line"),
    [
        ("driver", {}, "580.65.06, for CUDA up to 13.0"),
        ("driver", {"driver_cuda": 12090}, "580.65.06, for CUDA up to 12.9"),
        ("driver", {"driver": ""}, "of unknown version, for CUDA up to 13.0"),
        ("driver", {"driver_cuda": 0}, "580.65.06, but no libcuda.so.1 here"),
        ("driver", {"driver": "", "driver_cuda": 0}, "none: no libcuda.so.1 here"),
        ("torch", {}, "built for CUDA 13.0"),
        ("torch", {"torch_cuda": "13.2"}, "built for CUDA 13.2"),
        ("torch", {"driver_cuda": 12090}, "built for CUDA 13.0, which needs a driver for CUDA 13.0 or newer"),
        ("torch", {"driver_cuda": 0}, "built for CUDA 13.0"),
        ("torch", {"torch_cuda": None}, "built without CUDA"),
        ("gpu", {"gpus": ()}, "none that torch can use"),
        ("gpu 0", {}, "NVIDIA H200; compute capability 9.0, 132 multiprocessors, 143771 MiB"),
        ("gpu 1", NO_DMABUF, "NVIDIA A10; compute capability 8.6, 72 multiprocessors, 22515 MiB"),
        ("triton", {}, "3.7.1, compiles here"),
        ("triton", {"cannot_compile": "no gcc"}, "3.7.1, cannot compile here: no gcc"),
        ("triton", {"triton": None}, "not installed"),
        ("kernel cache", {}, "/cache/triton: writable"),
        ("kernel cache", {"cache_is_writable": False}, READ_ONLY),
        ("kernel cache", {"triton": None}, None),
        ("GPUDirect", {}, "nothing is missing: nvidia_peermem, a UCX with CUDA and verbs"),
        ("GPUDirect", {"peer_memory": False}, "nothing is missing: dmabuf, a UCX with CUDA and verbs"),
        ("GPUDirect", {"peer_memory": False, **NO_DMABUF}, NOT_TO_DEVICES),
        ("GPUDirect", {"gpus": (WITHOUT_DMABUF,)}, "nothing is missing: nvidia_peermem, a UCX with CUDA and verbs"),
        ("GPUDirect", NO_RDMA, "not usable: a UCX built --with-cuda; no device; no verbs"),
        ("GPUDirect", {"gpus": ()}, "not usable: no GPU"),
    ],
)
def test_each_line_follows_from_its_facts(title, facts, line):
    texts = [text for text in gpus.lines(Facts(**GOOD | facts)) if text.startswith(f"{title} ")]
    assert [text.removeprefix(title).strip() for text in texts] == ([line] if line else [])


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC 12.2"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n"


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.183.01"), (OPEN, "580.65.06"), ("something else", "")])
def test_version_of_the_kernel_s_module_in_both_variants(text, version):
    assert gpus.module_version(text) == version


def test_folder_that_is_to_be_made_is_writable_where_the_one_above_it_is(tmp_path):
    assert gpus.is_writable(tmp_path / "new" / "cache")
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o755)
    assert not gpus.is_writable(tmp_path / "file")
    assert not gpus.is_writable(Path("/proc/1/cache"))


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("cuda_utils.c:4:10: fatal error: Python.h: No such file\ncompilation terminated.\nTriton cannot", "Python.h"),
        ("warning: old\nTriton cannot compile what launches kernels: Failed to find C compiler.\n", "Failed to find"),
        ("", "it failed without output"),
    ],
)
def test_the_line_that_says_what_is_wrong_is_given(stderr, said):
    assert said in gpus.reason(stderr)
    assert "\n" not in gpus.reason(stderr)


def test_facts_of_this_machine_without_a_compiler(tmp_path):
    found = gpus.find({"PATH": "/nonexistent", "TRITON_CACHE_DIR": str(tmp_path)})
    assert (found.cache, found.cache_is_writable) == (str(tmp_path), True)
    assert found.ucx_has_cuda, "PyPI's UCX has it"
    assert bool(found.gpus) <= bool(found.driver_cuda)
    assert "Failed to find C compiler" in found.cannot_compile


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
    assert kernels.describe("m", problems) == f"kernels        {line}"


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
        return kernels.problems(gpus, Path("/m"), ("Float16", "FP8"), 32, environ), sorted(asked)

    return run


def test_each_kind_of_gpu_is_checked_once(check):
    problems, asked = check("true", H200, L4, H200)
    assert problems == {"sm_90": "", "sm_89": ""}
    assert asked == [
        ["/m", "Float16", "FP8", "32", "sm_89", str(99 << 10), "58"],
        ["/m", "Float16", "FP8", "32", "sm_90", str(227 << 10), "132"],
    ]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo choose; echo 'at 3:1:\n  x\nValueError(1)' >&2; exit 1", "choose: ValueError(1)"),
        ("echo; echo 'no such model' >&2; exit 1", "no such model"),
        ("kill -11 $$", "it failed without output"),
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
    (problem,) = kernels.problems([L4], path, ("None", "Auto", "Auto"), 8, os.environ).values()
    assert problem.startswith("a block size of 8 tokens is not supported")


def _handoffs(missing=(), failing=(), unmeasured=(), on_device=False):
    """True if this machine can hand over; the lines; the transports whose self-test was tried."""
    tried = []

    def measure(name):
        if name in unmeasured:
            raise LinkError("no result within 40 s")
        return Loopback(5e-6, 20e9)

    def check(name):
        tried.append(name)
        if name in failing:
            raise LinkError(CRASHED)

    made = Handoffs({"TCP": [], "SharedMemory": [], "RDMA": list(missing)}, measure, check, on_device=on_device)
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in made.lines()}
    return made.usable, lines, tried


CRASHED = "the self-test crashed with SIGSEGV"


@pytest.mark.parametrize(
    ("given", "auto", "tried"),
    [
        ({}, "RDMA; it passed the self-test", ["RDMA"]),
        ({"failing": ["RDMA"]}, f"TCP, as RDMA: {CRASHED}", ["RDMA"]),
        ({"failing": ["GPUDirect"], "on_device": True}, f"RDMA, as GPUDirect: {CRASHED}", ["GPUDirect", "RDMA"]),
        ({"missing": ["no device"], "on_device": True}, "TCP, as RDMA: no device", []),
    ],
    ids=["the self-test decides", "it fails", "a GPU's memory is tried first", "what is missing is not tried"],
)
def test_the_transport_that_auto_would_be(given, auto, tried):
    _, lines, asked = _handoffs(**given)
    assert (lines["Auto"], asked) == (auto, tried)
    usable = "usable; 5 µs a message, 20.0 GB/s between two processes here"
    assert lines["RDMA"] == ("not usable: no device" if "missing" in given else usable)


@pytest.mark.parametrize(("unmeasured", "usable"), [((), True), (("TCP",), True), (("TCP", "SharedMemory"), False)])
def test_a_machine_with_one_transport_can_hand_over(unmeasured, usable):
    able, lines, _ = _handoffs(missing=["no device"], unmeasured=unmeasured)
    assert able == usable
    assert {lines[name] for name in unmeasured} <= {"not usable: no result within 40 s"}
