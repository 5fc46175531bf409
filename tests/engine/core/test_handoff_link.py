"""The choice of a transport for hand-offs, on machines that have what this one lacks."""

import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from legato_engine.core.handoff import device_direct
from legato_engine.core.handoff.link import LinkOpener, MachineTransports
from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner.arena import Arena
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.identity import TransferArena
from legato_engine.transfer.link import LinkError

LAYOUT = KVLayout(layers=2, kv_heads=2, block_size=16, head_dim=16, dtype="float16")
BLOCKS, LONGEST = 12, 100  # tokens of the longest sequence
PORTS = (8100, 8199)


class DeviceArena(Arena):
    """Says of itself that only a device reaches it."""

    on_host = False


class Machine:
    """Notes what is tried and opened. `failing` do not pass their self-test, `closed` cannot be opened."""

    def __init__(self, missing=(), failing=(), closed=(), has_device=True):
        self.tried, self.opened, self.progress = [], [], []
        self._missing, self._failing, self._closed = list(missing), failing, closed
        self.transports = MachineTransports(self.missing, lambda: has_device, self.check, self.open)

    def missing(self, transport):
        return self._missing if transport in ("RDMA", "GPUDirect") else []

    def check(self, transport, host, ports):
        self.tried.append((transport, host, ports))
        if transport in self._failing:
            raise LinkError("the self-test crashed with SIGSEGV")

    def open(self, transport, host, address, nbytes, ports):
        if transport in self._closed:
            raise LinkError("UCX could not register memory")
        self.opened.append((transport, address, nbytes))
        return SimpleNamespace(transport=transport)


def opened(machine, transport="Auto", required=False, on_device=False, role="decode", host="127.0.0.1"):
    """The link, and the runner that it is for."""
    kind = DeviceArena if on_device else Arena
    arena = kind(LAYOUT, BLOCKS, torch.device("cpu"))
    runner = SimpleNamespace(layout=LAYOUT, num_blocks=BLOCKS, arena=arena, fallback="")
    settings = WorkerSettings(
        role, "d", "m", host, transport=transport, transport_required=required, transfer_ports=PORTS, block_size=16
    )
    opener = LinkOpener(
        settings, runner, LONGEST, lambda what, share: machine.progress.append(what), machine.transports
    )
    return opener.open(), runner


@pytest.fixture
def direct(monkeypatch):
    monkeypatch.setattr(device_direct, "open_direct", made := Mock())
    return made.return_value


def test_a_machine_whose_name_has_no_address_needs_a_setting(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=OSError("not known")))
    with pytest.raises(LinkError, match="set --transfer-host"):
        opened(Machine(), "TCP", host="0.0.0.0")
    assert opened(Machine(), "TCP")[0].link.transport == "TCP"


@pytest.mark.parametrize("transport", ["Auto", "RDMA"])
def test_nothing_is_tried_where_something_is_missing_and_without_a_device_only_rdma_falls_back(transport):
    machine = Machine(missing=["no device", "no verbs"], has_device=False)
    found, _ = opened(machine, transport, on_device=True)
    assert (found.link.transport, found.reason) == ("TCP", "RDMA: no device; no verbs")
    assert found.fallback is (transport == "RDMA")
    assert machine.tried == []


GPU = {"on_device": True}


@pytest.mark.parametrize(
    ("machine", "options", "tried", "used", "reason"),
    [
        ({}, {}, ["RDMA"], "RDMA", ""),
        ({}, {"transport": "RDMA"}, ["RDMA"], "RDMA", ""),
        ({"failing": ["RDMA"]}, {}, ["RDMA"], "TCP", "RDMA: "),
        ({"closed": ["RDMA"]}, {}, ["RDMA"], "TCP", "RDMA: "),
        ({}, {"transport": "TCP", "required": True}, [], "TCP", ""),
        ({}, {"transport": "SharedMemory"}, [], "SharedMemory", ""),
        ({}, GPU, ["GPUDirect"], "GPUDirect", ""),
        ({"failing": ["GPUDirect"]}, GPU, ["GPUDirect", "RDMA"], "RDMA", "GPUDirect: "),
        ({"closed": ["GPUDirect"]}, GPU, ["GPUDirect", "RDMA"], "RDMA", "GPUDirect: "),
        ({"failing": ["GPUDirect", "RDMA"]}, GPU, ["GPUDirect", "RDMA"], "TCP", "GPUDirect: "),
        ({"closed": ["GPUDirect", "RDMA"]}, GPU, ["GPUDirect", "RDMA"], "TCP", "GPUDirect: "),
    ],
)
def test_the_first_transport_that_passes_its_self_test_and_opens_is_used(direct, machine, options, tried, used, reason):
    """A GPU's memory is given only to the transport that was tried with it; others use the ring."""
    machine = Machine(**machine)
    found, runner = opened(machine, **options)
    assert machine.tried == [(name, "127.0.0.1", PORTS) for name in tried]
    assert machine.progress == [f"testing {name}" for name in tried]
    ring = bool(options.get("on_device")) and used != "GPUDirect"
    assert (found.direct, found.staging is not None) == (direct if used == "GPUDirect" else None, ring)
    memory = runner.arena.address, runner.arena.nbytes
    if ring:
        slots = found.staging.copies
        assert slots.address != runner.arena.address
        memory = slots.address, found.staging.slots * LAYOUT.block_bytes
    assert machine.opened == [(used, *memory)]
    assert found.link.transport == used
    assert (found.reason[: len(reason)], bool(found.reason), found.fallback) == (reason, bool(reason), bool(reason))


@pytest.mark.parametrize("transport", ["Auto", "RDMA"])
@pytest.mark.parametrize("machine", [{"missing": ["no device"]}, {"failing": ["RDMA"]}, {"closed": ["RDMA"]}])
def test_what_is_required_and_cannot_be_had_stops_the_worker(transport, machine):
    with pytest.raises(LinkError, match="no allowed transport for hand-offs can be used: RDMA: "):
        opened(Machine(**machine), transport, required=True)
    with pytest.raises(LinkError, match="TCP: UCX could not register memory"):
        opened(Machine(closed=["TCP"]), "TCP")


def test_a_gpu_that_does_not_allow_it_is_not_tried(monkeypatch):
    monkeypatch.setattr(device_direct, "open_direct", Mock(side_effect=LinkError("memory of expandable_segments")))
    machine = Machine()
    found, _ = opened(machine, on_device=True)
    assert [name for name, *_ in machine.tried] == ["RDMA"]
    assert found.reason == "GPUDirect: memory of expandable_segments"


def test_memory_of_a_device_is_never_taken_for_the_host_s():
    """Whatever opened the link: an agent with neither slots nor direct access would read and write by its address."""
    memory = ArenaMemory(torch.zeros(BLOCKS, 8, dtype=torch.int64, device="meta"), BLOCKS)
    with pytest.raises(ValueError, match="device memory needs staging"):
        TransferArena(memory, 16)
