"""Choice of the transport: requested or required, working or failing."""

import re

import pytest

from legato_engine.transfer import choice
from legato_engine.transfer.link import LinkError

DEVICE = "no RDMA device"


def decide(transport, required=False, on_device=False, lacking=(), failing=()):
    """Returns the transport that is opened, and why no better one; those in `failing` do not pass. Raises LinkError."""
    tried = []

    def use(name):
        tried.append(name)
        if name == "RDMA" and lacking:
            raise LinkError("; ".join(lacking))
        if name in failing:
            raise LinkError("the self-test failed")
        return name

    names = choice.candidates(transport, on_device=on_device, required=required, lacking=lacking)
    made = choice.first_usable(names, use)
    return made.opened, made.reason


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("transport", ["Auto", "RDMA"])
def test_rdma_is_used_where_it_passes(transport, required):
    assert decide(transport, required) == ("RDMA", "")
    assert decide(transport, required, on_device=True) == ("GPUDirect", "")
    second = decide(transport, required, on_device=True, failing=["GPUDirect"])
    assert second == ("RDMA", "GPUDirect: the self-test failed")


@pytest.mark.parametrize("transport", ["Auto", "RDMA"])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        ({"lacking": [DEVICE]}, "RDMA: no RDMA device"),
        ({"failing": ["GPUDirect", "RDMA"]}, "(GPUDirect: .*)?RDMA: the self-test failed"),
    ],
)
def test_tcp_takes_over_unless_rdma_is_required(transport, on_device, spoiled, reason):
    opened, why = decide(transport, on_device=on_device, **spoiled)
    assert opened == "TCP"
    assert re.fullmatch(reason, why)
    with pytest.raises(LinkError, match=f"no allowed transport .* can be used: .*{reason}$"):
        decide(transport, required=True, on_device=on_device, **spoiled)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("transport", ["TCP", "SharedMemory"])
def test_others_are_what_they_are_called(transport, required):
    assert decide(transport, required, on_device=True) == (transport, "")
    with pytest.raises(LinkError, match=f"{transport}: the self-test failed"):
        decide(transport, required, failing=[transport])


@pytest.mark.parametrize(
    ("transport", "reason", "has_device", "fallback"),
    [
        ("Auto", "", True, False),
        ("Auto", "RDMA: no RDMA device", False, False),  # there, Auto is TCP
        ("Auto", "RDMA: the self-test failed", True, True),
        ("RDMA", "RDMA: no RDMA device", False, True),
        ("RDMA", "", True, False),
        ("TCP", "", True, False),
    ],
)
def test_what_somebody_has_to_hear_of(transport, reason, has_device, fallback):
    assert choice.is_fallback(transport, reason, has_device) == fallback
