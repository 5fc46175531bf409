"""Opens the way to the memory of workers of the same node, after a self-test. See `transfer.node`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from legato_engine.runner.interface import StepRunner
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.node import selftest
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.host_pulls import HostPulls
from legato_engine.transfer.node.interface import NodeMemory
from legato_engine.transfer.node.neighbours import DoorNeighbours, OwnArena


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """`reason` is why workers of the same node do not read each other's memory although they should, or "". `fallback`
    is True if the settings ask for it in any case."""

    memory: NodeMemory = field(default_factory=NodeMemory)
    reason: str = ""
    fallback: bool = False


def open_node(
    settings: WorkerSettings, runner: StepRunner, memory: ArenaMemory, epoch: str, clock: Callable[[], float]
) -> NodeChoice:
    """Lets workers of the same node read `memory`, the arena, if the settings ask for it and the self-test passes."""
    if not settings.shares_memory:
        return NodeChoice()
    try:
        return NodeChoice(_open(settings, runner, memory, epoch, clock))
    except OSError as error:
        reason = f"memory of the node: {error.strerror or error}"
    except ValueError as error:
        reason = f"memory of the node: {error}"
    return NodeChoice(NodeMemory(), reason, settings.node_memory == "On")


def _open(
    settings: WorkerSettings, runner: StepRunner, memory: ArenaMemory, epoch: str, clock: Callable[[], float]
) -> NodeMemory:
    """Raises OSError and ValueError."""
    file = runner.arena.file
    if file is None:
        raise ValueError("not for KV in a GPU's memory" if not memory.on_host else "the kernel has no sealed files")
    owner = ArenaOwner(settings.name, epoch)
    own = OwnArena(owner, ArenaOffer(memory.num_blocks, memory.block_bytes), file)
    neighbours = DoorNeighbours(own, clock)
    try:
        selftest.check(neighbours, owner, file, settings.token)
    except (OSError, ValueError):
        neighbours.close()
        raise
    return NodeMemory(neighbours, HostPulls(memory))
