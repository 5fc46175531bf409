"""The transfer port's connections, read from the system's table of TCP sockets: UCX does not report them."""

from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_CLOSE_WAIT = "08"


def abandoned(address: bytes) -> int:
    """Number of connections to the link at this address (`Hello.address`) that the peer has closed and UCX has not.

    UCX keeps connections that sent foreign bytes until `transfer.ucx.strangers` resets them. 0 without a port.
    """
    port = address.rpartition(b":")[2]
    if not port.isdigit():
        return 0
    local = f":{int(port):04X}"
    lines = (line for table in _TABLES if table.exists() for line in table.read_text().splitlines()[1:])
    sockets = (line.split(None, 4) for line in lines)
    return sum(columns[1].endswith(local) and columns[3] == _CLOSE_WAIT for columns in sockets)
