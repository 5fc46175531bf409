"""Resets connections to the listener that never become endpoints: UCX waits forever for their first bytes.

If its buffer is full of foreign bytes, UCX also stops noticing that the peer has closed, and busy-waits from then on.
It gives up a socket with an error, so these are reset.
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

INTERVAL = 5.0  # seconds between checks
_log = logging.getLogger(__name__)
_TABLES = ((socket.AF_INET, Path("/proc/self/net/tcp")), (socket.AF_INET6, Path("/proc/self/net/tcp6")))
_OPEN = ("01", "08")  # established, and closed only by the peer
_UNSPECIFIED = bytes(16)  # a socket address with family AF_UNSPEC: connecting to it resets a connection
_connect = ctypes.CDLL(None).connect


class Strangers:
    """Such connections of the listener at `port`. Used in the UCX thread, the only one that closes these sockets."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: set[int] = set()
        self._next = time.monotonic() + INTERVAL

    @property
    def wait(self) -> float:
        """Seconds until the next check."""
        return self._next - time.monotonic()

    def check(self, known: Container[tuple[str, int] | None]) -> None:
        """Resets connections that were there at the last check, too. `known` are addresses of endpoints' peers.

        UCX releases them at its next progress.
        """
        self._next = time.monotonic() + INTERVAL
        strangers = {inode for inode, peer in _accepted(self._port) if peer not in known}
        lasting, self._seen = strangers & self._seen, strangers
        count = sum(map(_reset, _descriptors(lasting))) if lasting else 0
        if count:
            _log.warning("reset %d connections to the transfer port that no worker used", count)


def _accepted(port: int) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yields inode and peer of each connection that was accepted at this port."""
    local = f":{port:04X}"
    for family, table in _TABLES:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            columns = line.split(None, 10)
            if columns[1].endswith(local) and columns[3] in _OPEN and columns[9] != "0":
                yield int(columns[9]), sockets.from_table(family, columns[2])


def _descriptors(inodes: Container[int]) -> Iterator[int]:
    """Yields a duplicated descriptor for each of these sockets, which another thread cannot close and reuse."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.fstat(int(name)).st_ino not in inodes:
                continue
            descriptor = os.dup(int(name))
        except OSError:  # closed meanwhile, or out of descriptors
            continue
        try:
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and status.st_ino in inodes:
                yield descriptor
        finally:
            os.close(descriptor)


def _reset(descriptor: int) -> bool:
    return bool(_connect(descriptor, _UNSPECIFIED, len(_UNSPECIFIED)) == 0)
