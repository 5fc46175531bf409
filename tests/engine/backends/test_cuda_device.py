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
