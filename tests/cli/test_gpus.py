"""What `legato doctor` tells of GPUs follows from the facts, line by line; the facts of this machine are found."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from legato_cli import gpus
from legato_cli.gpus import Facts, Gpu

H200 = Gpu("NVIDIA H200", (9, 0), 132, 143_771 << 20, 227 << 10, dmabuf=True)
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


def _line(title, **facts):
    """The one line of that title."""
    (line,) = [line for line in gpus.lines(Facts(**GOOD | facts)) if line.startswith(f"{title} ")]
    return line.removeprefix(title).strip()


class Driver:
    """libcuda with so many devices, or one that cannot begin."""

    def __init__(self, devices, error=0):
        self._devices, self._error = devices, error

    def cuInit(self, flags):
        return self._error

    def cuDeviceGetCount(self, count):
        count._obj.value = self._devices
        return 0


@pytest.mark.parametrize(
    ("driver", "environ", "names"),
    [
        (None, {}, ()),
        (Driver(0), {}, ()),
        (Driver(8, error=100), {}, ()),
        (Driver(2), {}, ("0", "1")),
        (Driver(2), {"CUDA_VISIBLE_DEVICES": "3, GPU-7f"}, ("3", "GPU-7f")),
        (Driver(1), {"CUDA_VISIBLE_DEVICES": "3,99,1"}, ("3",)),
    ],
    ids=["no driver", "no device", "broken", "all", "some", "until the first unknown one"],
)
def test_visible_gpus_are_named_as_programs_are_told_them(monkeypatch, driver, environ, names):
    monkeypatch.setattr(gpus, "_libcuda", lambda: driver)
    monkeypatch.setattr(gpus, "_version", lambda _: "2.13.0+cu130")
    assert gpus.visible(environ) == names


def test_a_torch_for_cpus_finds_no_gpu(monkeypatch):
    monkeypatch.setattr(gpus, "_libcuda", lambda: Driver(2))
    monkeypatch.setattr(gpus, "_version", lambda _: "2.13.0+cpu")
    assert gpus.visible({}) == ()


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
        ("GPUDirect", {}, "nothing is missing: nvidia_peermem, a UCX with CUDA and verbs"),
        ("GPUDirect", {"peer_memory": False}, "nothing is missing: dmabuf, a UCX with CUDA and verbs"),
        ("GPUDirect", {"peer_memory": False, **NO_DMABUF}, NOT_TO_DEVICES),
        ("GPUDirect", {"gpus": (WITHOUT_DMABUF,)}, "nothing is missing: nvidia_peermem, a UCX with CUDA and verbs"),
        ("GPUDirect", NO_RDMA, "not usable: a UCX built --with-cuda; no device; no verbs"),
        ("GPUDirect", {"gpus": ()}, "not usable: no GPU"),
    ],
)
def test_each_line_follows_from_its_facts(title, facts, line):
    assert _line(title, **facts) == line


def test_without_triton_nothing_is_said_about_its_cache():
    assert not any("cache" in line for line in gpus.lines(Facts(**GOOD | {"triton": None})))


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
        ("", "it ended without a word"),
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


def test_a_compiler_that_can_be_used_is_found(tmp_path, monkeypatch):
    """Triton's compilation is in the tests of the engine, and with a real one in those of kernels."""
    environ = {"PATH": "/usr/bin", "TRITON_HOME": str(tmp_path)}
    asked = []

    def run(*_, env, **__):
        asked.append(env)
        return SimpleNamespace(returncode=0, stderr="warning: old")

    monkeypatch.setattr(gpus.subprocess, "run", run)
    found = gpus.find(environ)
    assert (found.cannot_compile, found.cache) == ("", f"{tmp_path}/.triton/cache")
    assert asked == [environ]
