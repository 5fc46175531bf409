"""Requirements of GPUDirect on a GPU's driver, which is made up here, and on torch's allocator."""

import pytest

from legato_engine.transfer.device import gpudirect
from legato_engine.transfer.link import LinkError

NONE, OWNER, ALL = 0, 100, 200


class Driver:
    """libcuda, as far as it is called; arguments by reference are filled in as the real one does."""

    def __init__(self, supported=1, options=1, ordering=NONE, flush=0):
        self.attributes = {116: supported, 117: options, 118: ordering}
        self.calls = []
        self.status = flush

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, number):
        device._obj.value = 40 + number
        return 0

    def cuDeviceGetAttribute(self, found, number, device):
        assert device.value == 43
        found._obj.value = self.attributes[number]
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 0xC0
        return 0

    def cuCtxSetCurrent(self, context):
        self.calls.append(("current", context.value))
        return 0

    def cuFlushGPUDirectRDMAWrites(self, target, scope):
        self.calls.append(("flush", target, scope))
        return self.status


FLUSH = [("current", 0xC0), ("flush", 0, 100)]


@pytest.mark.parametrize(("ordering", "options", "calls"), [(NONE, 1, FLUSH), (OWNER, 0, []), (ALL, 0, [])])
def test_writes_are_flushed_to_their_gpu_where_it_does_not_order_them(ordering, options, calls):
    driver = Driver(ordering=ordering, options=options)
    gpudirect.open_flush(3, driver)()
    assert driver.calls == calls


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (Driver(supported=0, ordering=ALL), "GPU 3 does not support GPUDirect RDMA"),
        (Driver(options=2), "GPU 3 neither orders the writes of RDMA devices nor lets the host flush them"),
    ],
)
def test_a_gpu_that_cannot_do_it_is_refused(driver, said):
    with pytest.raises(LinkError, match=said):
        gpudirect.open_flush(3, driver)


def test_a_missing_driver_and_a_flush_that_fails_are_named():
    with pytest.raises(LinkError, match="the GPU driver cannot be loaded"):
        gpudirect.open_flush(0)
    flush = gpudirect.open_flush(3, Driver(flush=201))
    with pytest.raises(LinkError, match="cuFlushGPUDirectRDMAWrites of the GPU driver failed with 201"):
        flush()


PLAIN = {"address": 1000, "total_size": 100, "is_expandable": False}


@pytest.mark.parametrize(
    ("address", "segments", "allocator", "said"),
    [
        (1000, [PLAIN | {"is_expandable": True}], "native", "expandable_segments"),
        (1000, [PLAIN], "cudaMallocAsync", "torch's allocator is cudaMallocAsync"),
        (1100, [PLAIN], "native", "does not know the memory"),
        (999, [PLAIN], "native", "does not know the memory"),
    ],
)
def test_other_memory_is_refused(address, segments, allocator, said):
    with pytest.raises(LinkError, match=said):
        gpudirect.check_plain(address, segments, allocator)


def test_a_plain_allocation_will_do_whatever_other_segments_are():
    others = {"address": 5000, "total_size": 9, "is_expandable": True}
    for address in (1000, 1099):
        gpudirect.check_plain(address, [PLAIN, others], "native")
