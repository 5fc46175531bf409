"""`legato doctor` tells what carries hand-offs here, and what `Auto` would be."""

import pytest

from legato_cli.handoffs import Handoffs
from legato_cli.loopback import Loopback
from legato_engine.transfer.link import LinkError


def told(missing=(), failing=(), unmeasured=(), on_device=False):
    tried = []

    def measure(name):
        if name in unmeasured:
            raise LinkError("no result within 40 s")
        return Loopback(5e-6, 20e9)

    def check(name):
        tried.append(name)
        if name in failing:
            raise LinkError("the self-test crashed with SIGSEGV")

    lacking = {"TCP": [], "SharedMemory": [], "RDMA": list(missing)}
    made = Handoffs(lacking, measure, check, on_device=on_device)
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in made.lines()}
    return made, lines, tried


def test_where_nothing_is_missing_the_self_test_decides():
    _, lines, tried = told()
    assert lines["RDMA"] == "usable; 5 µs a message, 20.0 GB/s between two processes here"
    assert (lines["Auto"], tried) == ("RDMA; it passed the self-test", ["RDMA"])
    assert told(failing=["RDMA"])[1]["Auto"] == "TCP, as RDMA: the self-test crashed with SIGSEGV"


def test_a_gpu_s_memory_is_tried_first():
    _, lines, tried = told(on_device=True, failing=["GPUDirect"])
    assert lines["Auto"] == "RDMA, as GPUDirect: the self-test crashed with SIGSEGV"
    assert tried == ["GPUDirect", "RDMA"]


def test_what_is_missing_is_told_and_not_tried():
    _, lines, tried = told(missing=["no device"], on_device=True)
    assert (lines["RDMA"], lines["Auto"]) == ("not usable: no device", "TCP, as RDMA: no device")
    assert tried == []


@pytest.mark.parametrize(("unmeasured", "usable"), [((), True), (("TCP",), True), (("TCP", "SharedMemory"), False)])
def test_a_machine_that_can_do_something_can_hand_over(unmeasured, usable):
    made, lines, _ = told(missing=["no device"], unmeasured=unmeasured)
    assert made.usable == usable
    for name in unmeasured:
        assert lines[name] == "not usable: no result within 40 s"
