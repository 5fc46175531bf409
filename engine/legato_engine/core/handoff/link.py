"""Chooses, tests and opens the transport of a worker's hand-offs over the memory that it reads and writes."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from legato_engine.runner.interface import Progress, StepRunner
from legato_engine.settings import WorkerSettings
from legato_engine.transfer import choice, ucx
from legato_engine.transfer.device.interface import DirectBlocks
from legato_engine.transfer.device.staging import Staging
from legato_engine.transfer.link import Link, LinkError
from legato_engine.transfer.selftest import process
from legato_engine.transfer.ucx import transports

if TYPE_CHECKING:
    from legato_engine.core.handoff.device_sums import DeviceSums

_Ports = tuple[int, int] | None
_TRIED = ("RDMA", "GPUDirect")  # used only after a self-test on this machine; the project's tests cover the others


@dataclass(frozen=True, slots=True)
class HandoffLink:
    """An open transport; `staging` or `direct` is set if the KV is in GPU memory.

    `reason` is why preferred transports are not used, or "". `fallback` is True if this transport is worse than the
    settings asked for, or than this machine's devices promise. `kernel_fallback` is why checksums use no kernel, or "".
    """

    link: Link
    staging: Staging | None = None
    direct: DirectBlocks | None = None
    reason: str = ""
    fallback: bool = False
    kernel_fallback: str = ""


@dataclass(frozen=True, slots=True)
class MachineTransports:
    """Transports of this machine: what each lacks, whether there is an RDMA device, the self-test, and the link.

    `check` tests a transport at a host in a range of ports. `check` and `open` raise LinkError.
    """

    missing: Callable[[str], Sequence[str]] = transports.missing_for
    has_rdma_device: Callable[[], bool] = transports.has_rdma_device
    check: Callable[[str, str, _Ports], None] = process.check
    open: Callable[[str, str, int, int, _Ports], Link] = ucx.open


class LinkOpener:
    """Opens the transport of one worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        runner: StepRunner,
        max_length: int,
        progress: Progress,
        machine: MachineTransports | None = None,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._max_length = max_length
        self._progress = progress
        self._machine = machine or MachineTransports()

    def open(self) -> HandoffLink:
        """Opens the first usable transport. Raises LinkError if no allowed one can be used, TooLittleMemory,
        KernelFailed."""
        asked, on_host = self._settings.transport, self._runner.arena.on_host
        names = choice.candidates(
            asked,
            on_device=not on_host,
            required=self._settings.transport_required,
            lacking=self._machine.missing("RDMA"),
        )
        made = choice.first_usable(names, self._use)
        return replace(
            made.opened,
            reason=made.reason,
            fallback=choice.is_fallback(asked, made.reason, self._machine.has_rdma_device()),
            kernel_fallback="" if on_host else self.sums.fallback,
        )

    def _use(self, transport: str) -> HandoffLink:
        """Tests and opens a transport. Raises LinkError if it cannot be used."""
        if lacking := self._machine.missing(transport):
            raise LinkError("; ".join(lacking))
        direct = self._direct() if transport == "GPUDirect" else None
        if transport in _TRIED:
            self._progress(f"testing {transport}", 0.0)
            self._machine.check(transport, self._host, self._settings.transfer_ports)
        arena = self._runner.arena
        if arena.on_host or direct:
            return HandoffLink(self._link(transport, arena.address, arena.nbytes), direct=direct)
        staging = self._staging
        size = staging.slots * self._runner.layout.block_bytes
        return HandoffLink(self._link(transport, staging.copies.address, size), staging)

    def _link(self, transport: str, address: int, nbytes: int) -> Link:
        return self._machine.open(transport, self._host, address, nbytes, self._settings.transfer_ports)

    @property
    def _host(self) -> str:
        """The address at which other workers reach this one; the host name's, if it listens on all addresses."""
        host = self._settings.transfer_host or self._settings.host
        if host not in ("0.0.0.0", "::"):
            return host
        name = socket.gethostname()
        try:
            addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return str(min(addresses, key=lambda each: each[0] != socket.AF_INET)[4][0])  # IPv6 only without IPv4
        except OSError as error:
            raise LinkError(f"no address of {name} is known ({error}): set --transfer-host") from None

    @cached_property
    def sums(self) -> "DeviceSums":
        from legato_engine.core.handoff import device_sums  # imports torch and triton

        return device_sums.open_sums(self._settings, self._runner)

    @cached_property
    def _staging(self) -> Staging:
        """Opened once for all transports that need it: the memory stays pinned."""
        from legato_engine.core.handoff import device_staging

        return device_staging.open_staging(self._settings, self._runner, self._max_length, self.sums.sums)

    def _direct(self) -> DirectBlocks:
        from legato_engine.core.handoff import device_direct

        return device_direct.open_direct(self._runner, self.sums.sums)
