import pytest

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.measure import measure
from legato_engine.transfer.transports import available_transports, choose


@pytest.mark.parametrize("transport", ["TCP", "SharedMemory"])
def test_a_usable_transport_can_be_measured(transport):
    assert available_transports()[transport] == []
    measured = measure(transport)
    assert measured.label == choose(transport).label
    assert measured.latency > 0
    assert measured.bandwidth > 0


def test_rdma_is_chosen_only_where_nothing_is_missing():
    lacking = available_transports()["RDMA"]
    if lacking:
        assert choose("Auto").label == "ucx:tcp"
        with pytest.raises(LinkError, match="RDMA is not usable"):
            choose("RDMA")
    else:
        assert choose("Auto").label == "ucx:rdma"


def test_an_unknown_transport_is_named():
    with pytest.raises(LinkError, match="'Carrier Pigeon'"):
        choose("Carrier Pigeon")
