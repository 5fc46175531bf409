"""Supported GPUs, by compute capability."""

from types import SimpleNamespace

import pytest
import torch

from legato_engine.backends.cuda.device import Cuda
from legato_engine.errors import NoDevice

PLACE = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):

    def make(major, minor):
        properties = SimpleNamespace(name="Some GPU", major=major, minor=minor, multi_processor_count=40)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _place: properties)
        monkeypatch.setattr(torch.cuda, "Stream", lambda _place: None)
        return Cuda(PLACE)

    return make


@pytest.mark.parametrize("minor", [0, 5])
def test_a_gpu_older_than_kernels_need_is_refused(gpu, minor):
    message = rf"^Some GPU has compute capability 7\.{minor}; kernels need at least 8\.0 .*: use such a GPU, or cpu$"
    with pytest.raises(NoDevice, match=message):
        gpu(7, minor)


@pytest.mark.parametrize(("major", "minor", "chip"), [(8, 0, "sm_80"), (8, 9, "sm_89"), (12, 0, "sm_120")])
def test_a_newer_one_is_known_by_its_chip(gpu, major, minor, chip):
    device = gpu(major, minor)
    assert (device.chip, device.processors, device.place) == (chip, 40, PLACE)
    assert torch.bfloat16 in device.dtypes


def test_graphs_share_memory_as_long_as_one_of_them_is_left(gpu, monkeypatch):
    """torch aborts a capture into the memory of graphs that are all gone."""
    alive = list[object]()  # the pool of each graph that is left

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            assert pool is None or pool in alive, "the pool of no graph"
            self._pool = pool or object()
            alive.append(self._pool)

        def capture_end(self): ...

        def pool(self):
            return self._pool

        def replay(self): ...

        def __del__(self):
            alive.remove(self._pool)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    device = gpu(9, 0)
    first, second = (device.capture(lambda: None) for _ in range(2))
    assert len(set(alive)) == 1
    del second  # the last one that was captured
    third = device.capture(lambda: None)
    assert len(set(alive)) == 1
    del first, third
    device.capture(lambda: None)
