"""Workers of the same node: opens their arenas, and lets them open this worker's.

Two workers are on one node if their kernels have the same boot id. They find out by trying whether one can reach
the other's memory: containers with different IPC namespaces share neither the folder of doors nor device memory.
"""

import logging
import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from legato_engine.transfer.connections.seals import Token
from legato_engine.transfer.node.door import FOLDER, Door, Visit
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.interface import PeerArena
from legato_engine.transfer.node.memory_file import MappedFile, MemoryFile
from legato_protocol.wire.handoff import PeerHello

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a kernel
PATIENCE = 1.0  # seconds for an answer; meanwhile, no grant is sent to that worker
_log = logging.getLogger(__name__)

OpenArena = Callable[[ArenaOffer, Sequence[int]], PeerArena]


def open_mapped(offer: ArenaOffer, fds: Sequence[int]) -> PeerArena:
    """Implements `OpenArena` for arenas in host memory."""
    if len(fds) != 1 or offer.handle:
        raise ValueError("its arena is not in host memory")
    return MappedFile(fds[0], offer.num_blocks, offer.block_bytes)


@dataclass(frozen=True, slots=True)
class OwnArena:
    """This worker's arena as visitors get it, and the way to open arenas of the same kind.

    `open` raises OSError or ValueError.
    """

    owner: ArenaOwner
    offer: ArenaOffer
    file: MemoryFile | None
    open: OpenArena = open_mapped


class DoorNeighbours:
    """Implements `Neighbours` by doors in a folder."""

    def __init__(self, own: OwnArena, clock: Callable[[], float], folder: Path = FOLDER) -> None:
        """Raises OSError if there cannot be a door in `folder`."""
        self.node = _BOOT_ID.read_text().strip()
        self._failed: set[int] = set()
        self._logged = False
        self._own = own
        self._clock = clock
        self._folder = folder
        self._tokens: tuple[str, ...] = ()
        self._arenas: dict[int, PeerArena] = {}
        self._visits: dict[int, tuple[Visit, float, str]] = {}  # with the end of patience, and the worker
        self._door = Door(folder, own.owner, own.offer, own.file)
        self._poll = select.epoll()
        self._watched: set[int] = set()
        self._watch()

    @property
    def own_door(self) -> tuple[str, str, str]:
        """The folder of this worker's door, and the worker and epoch that name it."""
        return str(self._folder), self._own.owner.worker, self._own.owner.epoch

    @property
    def readable(self) -> int:
        return len(self._arenas)

    @property
    def unreadable(self) -> int:
        return len(self._failed)

    def trust(self, tokens: Sequence[str]) -> None:
        self._tokens = tuple(tokens)

    def meet(self, connection: int, hello: PeerHello, token: Token) -> None:
        if hello.node != self.node:
            return
        try:
            visit = Visit(self._folder, ArenaOwner(hello.worker, hello.epoch), token.text)
        except OSError as error:
            absent = isinstance(error, FileNotFoundError)
            self._fail(connection, hello.worker, "no shared IPC namespace (hostIPC)" if absent else str(error))
            return
        self._visits[connection] = visit, self._clock() + PATIENCE, hello.worker
        self._watch()

    def is_settled(self, connection: int) -> bool:
        return connection not in self._visits

    def arena(self, connection: int) -> PeerArena | None:
        return self._arenas.get(connection)

    def leave(self, connection: int) -> None:
        self._arenas.pop(connection, None)
        self._failed.discard(connection)
        self._end(connection)

    def poll(self) -> None:
        if not (self._poll.poll(0) or self._visits):
            return
        self._door.serve(self._tokens)
        now = self._clock()
        for connection, (visit, due, worker) in list(self._visits.items()):
            try:
                arena = self._result(visit)
            except (OSError, ValueError) as error:
                self._fail(connection, worker, str(error))
            else:
                if arena is not None:
                    self._arenas[connection] = arena
                elif now < due:
                    continue
                else:
                    self._fail(connection, worker, f"no answer within {PATIENCE:g} s")
            self._end(connection)
        self._watch()

    def timers(self) -> Iterator[float]:
        return (due for _, due, _ in self._visits.values())

    def fileno(self) -> int:
        return self._poll.fileno()

    def close(self) -> None:
        for connection in list(self._visits):
            self._end(connection)
        self._arenas.clear()
        self._door.close()
        self._poll.close()

    def _result(self, visit: Visit) -> PeerArena | None:
        came = visit.result()
        if came is None:
            return None
        offer, fds = came
        try:
            if offer.block_bytes != self._own.offer.block_bytes:
                raise ValueError(f"its blocks have {offer.block_bytes} bytes, ours {self._own.offer.block_bytes}")
            return self._own.open(offer, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _fail(self, connection: int, worker: str, reason: str) -> None:
        self._failed.add(connection)
        if not self._logged:
            self._logged = True
            _log.warning("the memory of %s, a worker of this node, cannot be read: %s", worker, reason)

    def _end(self, connection: int) -> None:
        visit = self._visits.pop(connection, None)
        if visit is not None:
            visit[0].close()

    def _watch(self) -> None:
        """Waits for all open sockets. Closed ones have left `epoll` by themselves."""
        wanted = {*self._door.filenos(), *(visit.fileno() for visit, _, _ in self._visits.values())}
        for fd in self._watched - wanted:
            with suppress(OSError):
                self._poll.unregister(fd)
        for fd in wanted:
            with suppress(FileExistsError):
                self._poll.register(fd, select.EPOLLIN)
        self._watched = wanted
