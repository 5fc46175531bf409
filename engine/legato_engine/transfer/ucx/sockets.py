"""Socket addresses of this machine: their binary form, and the network interface of each."""

import array
import fcntl
import socket
import struct
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from legato_engine.transfer.link import LinkError

_SIOCGIFCONF = 0x8912
_INTERFACE_REQUEST = 40  # bytes of a `struct ifreq`: the name in 16, then a socket address
_MOST_INTERFACES = 1024


def numeric(host: str) -> str:
    """The numeric address of a host name. Raises LinkError."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise LinkError(f"not an address: {host!r}: {error}") from None


def split(address: bytes) -> tuple[str, int]:
    """Host and port of `host:port`. Raises ValueError if it is invalid: addresses come from other machines."""
    host, _, port = address.decode().rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 0xFFFF):
        raise ValueError(f"not a valid port: {port} (1 to 65535)")
    return str(ip_address(host)), int(port)


def pack(host: str, port: int) -> bytes:
    """A `struct sockaddr` of a numeric host."""
    address = ip_address(host)
    if address.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, address.packed)
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16sI", port, 0, address.packed, 0)


def unpack(address: bytes) -> tuple[str, int]:
    """Host and port of a `struct sockaddr` for IPv4 or IPv6."""
    port = int.from_bytes(address[2:4], "big")
    if int.from_bytes(address[:2], sys.byteorder) == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, address[8:24]), port
    return socket.inet_ntop(socket.AF_INET, address[4:8]), port


def from_table(family: socket.AddressFamily, text: str) -> tuple[str, int]:
    """Host and port in the format of /proc/net/tcp: words in the machine's byte order, in hexadecimal."""
    digits, _, port = text.rpartition(":")
    words = array.array("I", bytes.fromhex(digits))
    if sys.byteorder == "little":
        words.byteswap()
    return socket.inet_ntop(family, words.tobytes()), int(port, 16)


def interface(host: str) -> str:
    """The interface that has this numeric address. Raises LinkError if this machine does not have it."""
    address = ip_address(host)
    own = [(name, ip_address(known)) for name, known in addresses()]
    for name, known in own:
        if known == address or (address.is_loopback and known.is_loopback and known.version == address.version):
            return name
    raise LinkError(f"{host} is not an address of this machine; it has {', '.join(str(known) for _, known in own)}")


def addresses() -> Iterator[tuple[str, str]]:
    """Yields each interface of this machine with each of its addresses."""
    buffer = array.array("B", bytes(_INTERFACE_REQUEST * _MOST_INTERFACES))
    asked = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        used = struct.unpack("iL", fcntl.ioctl(any_socket, _SIOCGIFCONF, asked))[0]
    for start in range(0, used, _INTERFACE_REQUEST):
        name = buffer[start : start + 16].tobytes().partition(b"\0")[0].decode()
        yield name.partition(":")[0], socket.inet_ntoa(buffer[start + 20 : start + 24].tobytes())
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, *_, name = line.split()
        yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
