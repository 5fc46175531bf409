"""Opens the way to the memory of workers of the same node, after a self-test. See `transfer.node`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from legato_engine.runner.interface import StepRunner
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.node import selftest
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.host_pulls import HostPulls
from legato_engine.transfer.node.interface import NodeMemory
from legato_engine.transfer.node.neighbours import DoorNeighbours, OwnArena

if TYPE_CHECKING:
    from legato_engine.transfer.device.cuda import CudaSums


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Access to other workers' memory; without it although the settings allow it, `reason` says why. `fallback` is True
    if the settings require it."""

    memory: NodeMemory = field(default_factory=NodeMemory)
    reason: str = ""
    fallback: bool = False


class NodeOpener:
    """Opens the memory of one worker, of an `epoch`. `sums` are for an arena in GPU memory, which is used only with
    `--node-memory On`, because it is not verified on GPUs."""

    def __init__(
        self,
        settings: WorkerSettings,
        runner: StepRunner,
        memory: ArenaMemory,
        epoch: str,
        sums: Callable[[], "CudaSums | None"],
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._memory = memory
        self._owner = ArenaOwner(settings.name, epoch)
        self._sums = sums

    def open(self, clock: Callable[[], float]) -> NodeChoice:
        """Lets workers of the same node read the arena, if the settings ask for it and the self-test passes."""
        asked = self._settings.node_memory == "On"
        if not (self._settings.shares_memory and (asked or self._memory.on_host)):
            return NodeChoice()
        try:
            return NodeChoice(self._open(clock))
        except OSError as error:
            reason = error.strerror or str(error)
        except (LinkError, ValueError) as error:
            reason = str(error)
        return NodeChoice(NodeMemory(), f"memory of the node: {reason}", asked)

    def _open(self, clock: Callable[[], float]) -> NodeMemory:
        """Raises OSError, LinkError and ValueError."""
        memory, file, owner = self._memory, self._runner.arena.file, self._owner
        if not memory.on_host:
            return self._open_device(clock)
        if file is None:
            raise ValueError("the kernel has no sealed files")
        own = OwnArena(owner, ArenaOffer(memory.num_blocks, memory.block_bytes), file)
        neighbours = DoorNeighbours(own, clock)
        try:
            selftest.check(neighbours, owner, file, self._settings.token)
        except (OSError, ValueError):
            neighbours.close()
            raise
        return NodeMemory(neighbours, HostPulls(memory))

    def _open_device(self, clock: Callable[[], float]) -> NodeMemory:
        """Raises OSError, LinkError and ValueError."""
        from legato_engine.core.handoff import device_node  # imports torch

        sums, token = self._sums(), self._settings.token
        assert sums is not None, "checksums are on"
        return device_node.open_device(self._runner, self._memory, self._owner, token, sums, clock)
