"""Connections to the listener that are no endpoint's: UCX waits for ever for bytes that make one.

Where its buffer is full of bytes that are none of its own, it also stops noticing that the peer has closed, and never
sleeps again. It does give up a socket in error, so these are reset.
"""

import ctypes
import logging
import os
import socket
import stat
import time
from collections.abc import Container, Iterator
from pathlib import Path

from legato_engine.transfer.ucx import sockets

INTERVAL = 5.0  # seconds between looks
_log = logging.getLogger(__name__)
_TABLES = ((socket.AF_INET, Path("/proc/self/net/tcp")), (socket.AF_INET6, Path("/proc/self/net/tcp6")))
_OPEN = ("01", "08")  # established, and closed by the peer alone
_UNSPECIFIED = bytes(16)  # a socket address of no family: to connect to it resets a connection
_connect = ctypes.CDLL(None).connect


class Strangers:
    """Of the listener at `port`. Used in the UCX thread, which alone closes such sockets."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: set[int] = set()
        self._next = time.monotonic() + INTERVAL

    @property
    def wait(self) -> float:
        """Seconds until it is time to look."""
        return self._next - time.monotonic()

    def look(self, known: Container[tuple[str, int] | None]) -> None:
        """Resets those that were there at the last look already. `known` are addresses of endpoints' peers.

        UCX lets go of them at its next progress.
        """
        self._next = time.monotonic() + INTERVAL
        found = {inode for inode, peer in _accepted(self._port) if peer not in known}
        lasting, self._seen = found & self._seen, found
        count = sum(map(_reset, _descriptors(lasting))) if lasting else 0
        if count:
            _log.warning("reset %d connections to the transfer port, over which no worker spoke", count)


def _accepted(port: int) -> Iterator[tuple[int, tuple[str, int]]]:
    """Inode and peer of each connection that was accepted at this port."""
    local = f":{port:04X}"
    for family, table in _TABLES:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            columns = line.split(None, 10)
            if columns[1].endswith(local) and columns[3] in _OPEN and columns[9] != "0":
                yield int(columns[9]), sockets.from_table(family, columns[2])


def _descriptors(inodes: Container[int]) -> Iterator[int]:
    """A descriptor of its own for each of these sockets, so that it stays the one that it was taken for."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.fstat(int(name)).st_ino not in inodes:
                continue
            descriptor = os.dup(int(name))
        except OSError:  # closed meanwhile, or there is none left
            continue
        try:
            found = os.fstat(descriptor)
            if stat.S_ISSOCK(found.st_mode) and found.st_ino in inodes:
                yield descriptor
        finally:
            os.close(descriptor)


def _reset(descriptor: int) -> bool:
    return bool(_connect(descriptor, _UNSPECIFIED, len(_UNSPECIFIED)) == 0)
