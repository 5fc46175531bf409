import pytest

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.ucx.transports import available_transports, choose


@pytest.mark.parametrize("transport", ["TCP", "SharedMemory"])
def test_what_this_machine_can_do_lacks_nothing(transport):
    assert available_transports()[transport] == []


def test_rdma_is_taken_only_by_name_and_only_where_nothing_is_missing():
    """That a fence keeps its late writes out has not been shown on a network card: `Auto` must not rely on it."""
    assert choose("Auto", lacking=[]).label == choose("Auto", lacking=["a device"]).label == "ucx:tcp"
    assert choose("RDMA", lacking=[]).label == "ucx:rdma"
    with pytest.raises(LinkError, match="RDMA is not usable here: a device"):
        choose("RDMA", lacking=["a device"])


def test_an_unknown_transport_is_named():
    with pytest.raises(LinkError, match="'Carrier Pigeon'"):
        choose("Carrier Pigeon")
