"""The transports of hand-offs, their UCX options, and the requirements that this machine does not meet.

A fence requires that the receiver can close an endpoint without the sender. Cross memory attach, XPMEM and CUDA IPC let
a sender write into the receiver's memory without the receiver: a peer that was stopped and wakes up late could not be
kept out. So they are not allowed, and with `SharedMemory` only control messages use shared memory; blocks use TCP over
the loopback. RDMA uses only `rc`, whose queue pairs are connected: a destroyed one accepts no writes.

`transfer.choice` decides which transport a worker uses.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from legato_engine.transfer.link import LinkError
from legato_protocol.wire import transports

Transport = Literal["TCP", "SharedMemory", "RDMA", "GPUDirect"]
_DEVICES = Path("/sys/class/infiniband")  # the node's devices, visible in every container
_OPENED = Path("/dev/infiniband")  # the devices that this container was given


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """`tls` is UCX's list of transports; `label` is for `Hello.transport`. `on_device`: for GPU memory."""

    label: str
    tls: str
    on_device: bool = False

    @property
    def by_tcp(self) -> bool:
        """True if it uses network interfaces instead of RDMA devices."""
        return "tcp" in self.tls.split(",")


_TCP = TransportConfig(transports.TCP, "tcp")
_SHARED_MEMORY = TransportConfig(transports.SHARED_MEMORY, "tcp,posix,sysv")
_RDMA = TransportConfig(transports.RDMA, "rc")
_GPUDIRECT = TransportConfig(transports.GPUDIRECT, "rc,cuda_copy", on_device=True)  # `cuda_copy`: detects GPU memory


def choose(transport: str, lacking: Sequence[str] | None = None) -> TransportConfig:
    """The configuration of UCX for a transport. `lacking` are unmet requirements, determined here unless given.

    Raises LinkError if the transport is not usable here.
    """
    match transport:
        case "TCP":
            return _TCP
        case "SharedMemory":
            return _SHARED_MEMORY
        case "RDMA" | "GPUDirect":
            if lacking := missing_for(transport) if lacking is None else lacking:
                raise LinkError(f"{transport} is not usable here: {'; '.join(lacking)}")
            return _RDMA if transport == "RDMA" else _GPUDIRECT
    raise LinkError(f"not a transport: {transport!r} (TCP, SharedMemory, RDMA or GPUDirect)")


def available_transports() -> dict[str, list[str]]:
    """Unmet requirements of each transport; none if it is usable."""
    lacking = [] if importlib.util.find_spec("ucxx") else ["the Python package ucxx"]
    names: tuple[Transport, ...] = ("TCP", "SharedMemory", "RDMA")
    return {name: lacking + missing_for(name) for name in names}


def missing_for(transport: str) -> list[str]:
    """Unmet requirements of a transport on this machine, as far as they can be determined without a test."""
    match transport:
        case "RDMA":
            return missing_for_rdma()
        case "GPUDirect":
            return missing_for_rdma() + ([] if has_module("cuda") else ["a UCX built --with-cuda"])
    return []


def has_rdma_device() -> bool:
    """True if this container was given an RDMA device."""
    return any(_OPENED.glob("uverbs*"))


def missing_for_rdma() -> list[str]:
    """Unmet requirements of RDMA on this machine."""
    lacking = []
    if not any(_DEVICES.glob("*")):
        lacking.append(f"no RDMA device in {_DEVICES}")
    if not has_rdma_device():
        lacking.append(f"no {_OPENED}/uverbs* in this container")
    if not has_module("ib"):
        lacking.append("a UCX built --with-verbs (1.19 or later; then RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true)")
    return lacking


def has_module(name: str) -> bool:
    """True if a UCX on this machine was built with a module of that name: `ib`, `cuda`.

    Modules are in the folder `ucx` of a library folder, or of one of its architecture folders. Nothing else is
    searched: /usr/lib as a whole has tens of thousands of folders.
    """
    spec = importlib.util.find_spec("libucx")
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    folders += [Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"), Path("/opt/ucx/lib")]
    patterns = (f"ucx/libuct_{name}*.so*", f"*/ucx/libuct_{name}*.so*")
    return any(match for folder in folders for pattern in patterns for match in folder.glob(pattern))
