import pytest

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.ucx import transports
from legato_engine.transfer.ucx.structures import MapParams, RequestParams
from legato_engine.transfer.ucx.transports import available_transports, choose
from legato_engine.transfer.ucx.ucp import Ucp

HOST, CUDA = 0, 1  # as UCX numbers types of memory


@pytest.mark.parametrize("transport", ["TCP", "SharedMemory"])
def test_what_this_machine_can_do_lacks_nothing(transport):
    assert available_transports()[transport] == []


@pytest.mark.parametrize(
    ("transport", "tls", "on_device"), [("RDMA", "rc", False), ("GPUDirect", "rc,cuda_copy", True)]
)
def test_rdma_is_there_only_where_nothing_is_missing_and_by_connected_queue_pairs_alone(transport, tls, on_device):
    found = choose(transport, lacking=[])
    assert (found.tls, found.on_device, found.by_tcp) == (tls, on_device, False)
    with pytest.raises(LinkError, match=f"{transport} is not usable here: a device"):
        choose(transport, lacking=["a device"])


@pytest.mark.parametrize("given", [True, False])
def test_a_device_of_the_node_is_none_of_this_container_s(monkeypatch, tmp_path, given):
    """Else every service there would be warned that it uses TCP."""
    (tmp_path / "sys" / "mlx5_0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    if given:
        (tmp_path / "dev" / "uverbs0").touch()
    monkeypatch.setattr(transports, "_DEVICES", tmp_path / "sys")
    monkeypatch.setattr(transports, "_OPENED", tmp_path / "dev")
    assert transports.has_rdma_device() is given
    lacking = " ".join(transports.missing_for_rdma())
    assert ("uverbs" in lacking, "no RDMA device" in lacking) == (not given, False)


@pytest.mark.parametrize("name", ["Carrier Pigeon", "Auto"])
def test_an_unknown_transport_is_named(name):
    with pytest.raises(LinkError, match=f"'{name}'"):
        choose(name)


class Recorded:
    """libucp, that takes note of types of memory."""

    def __init__(self):
        self.types = []

    def ucp_mem_map(self, context, params, handle):
        assert params._obj.mask == 0b10011
        self.types.append(params._obj.memory_type)
        return 0

    def ucp_put_nbx(self, endpoint, local, length, remote, key, params):
        assert params._obj.mask == 1 << 6
        self.types.append(params._obj.memory_type)


@pytest.mark.parametrize(("on_device", "kind"), [(False, HOST), (True, CUDA)])
def test_ucx_is_told_whose_memory_it_registers_and_reads(on_device, kind):
    ucp = Ucp(on_device)
    ucp._lib = Recorded()
    ucp.map_memory(1, 4096, 4096)
    ucp.put(1, 4096, 10, 0, 1)
    assert ucp._lib.types == [kind, kind]


def test_types_of_memory_lie_where_ucx_reads_them():
    """In `ucp.h` of release 1.19, on machines of 64 bits."""
    assert (MapParams.memory_type.offset, RequestParams.memory_type.offset) == (32, 48)
