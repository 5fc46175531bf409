"""The transfer port as the system's table of TCP sockets shows it: UCX listens there itself, and tells nothing."""

from collections.abc import Iterable
from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_CLOSE_WAIT = "08"


def abandoned(address: bytes, tables: Iterable[Path] = _TABLES) -> int:
    """Connections to the link at this address (`Hello.address`) that their peer has closed and UCX has not: after bytes
    that are none of UCX's it keeps them, until `transfer.ucx.strangers` resets them. 0 where there is no such port."""
    port = address.rpartition(b":")[2]
    if not port.isdigit():
        return 0
    local = f":{int(port):04X}"
    lines = (line for table in tables if table.exists() for line in table.read_text().splitlines()[1:])
    sockets = (line.split(None, 4) for line in lines)
    return sum(columns[1].endswith(local) and columns[3] == _CLOSE_WAIT for columns in sockets)
