"""Parsers of values in flags, manifests and headers.

Each parser takes text and raises ValueError in one style: "not a valid port: 99999 (1 to 65535)". Durations and sizes
have modules of their own.
"""

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

PORTS = (1, 65535)
ORIGIN = r"^(\*|https?://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)$"  # of web pages, as browsers send it; or all
COLLECTOR = r"^https?://[^\s/]+(/\S*)?$"  # address of a collector of traces

_SHOWN = 60  # characters of a value that an error message repeats
_HOST = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?"
)
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def invalid(kind: str, given: object, allowed: str) -> ValueError:
    """Returns the error for a value that is not a `kind`, with the allowed values."""
    return ValueError(f"not a valid {kind}: {_shown(given)} ({allowed})")


def _shown(given: object) -> str:
    """Shortens a value for a message, in quotes if its end would not be visible otherwise."""
    text = given if isinstance(given, str) else repr(given)
    plain = isinstance(given, str) and given.isprintable() and given.split() == [given]
    short = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return short if plain or not isinstance(given, str) else repr(short)


def whole(text: str, least: int, most: int, kind: str = "number", also: str = "") -> int:
    """Parses a whole number from `least` to `most`. `also` is appended to the allowed values in an error."""
    if not re.fullmatch(r"[0-9]{1,15}", text) or not least <= int(text) <= most:
        raise invalid(kind, text, f"{least} to {most}{also}")
    return int(text)


def real(text: str, least: float, most: float) -> float:
    """Parses a number in plain digits, such as `0.5`, from `least` to `most`."""
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,30})?", text) or not least <= float(text) <= most:
        raise invalid("number", text, f"{least:g} to {most:g}")
    return float(text)


def one_of(text: str, allowed: tuple[str, ...], kind: str) -> str:
    """Parses a word of an enumeration; case matters."""
    if text not in allowed:
        raise invalid(kind, text, ", ".join(allowed))
    return text


def port(text: str) -> int:
    """Parses a port, 1 to 65535."""
    return whole(text, *PORTS, "port")


def port_or_free(text: str) -> int:
    """Parses a port to listen on; 0 takes any free one."""
    return whole(text, 0, PORTS[1], "port", "; 0 takes a free one")


def port_range(text: str) -> tuple[int, int]:
    """Parses the first and last port of `8100-8199`, which are two or more."""
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    if not match or not PORTS[0] <= int(match[1]) < int(match[2]) <= PORTS[1]:
        raise invalid("port range", text, "two ports or more, from 1 to 65535, such as 8100-8199")
    return int(match[1]), int(match[2])


def host(text: str) -> str:
    """Parses a host's name or IP address, without brackets."""
    if not is_address(text) and not (len(text) <= 253 and _HOST.fullmatch(text)):
        raise invalid("host", text, "a host name or an IP address")
    return text


def host_port(text: str) -> str:
    """Checks `HOST:PORT`, with brackets around an IPv6 address, and returns the text unchanged."""
    name, _, number = text.rpartition(":")
    try:
        port(number)
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        if (bare != name and ":" not in bare) or (bare == name and ":" in name):
            raise ValueError
        host(bare)
    except ValueError:
        raise invalid("address", text, "HOST:PORT, such as 10.0.0.1:8082 or [fd00::1]:8082") from None
    return text


def is_address(text: str) -> bool:
    """True for an IPv4 or IPv6 address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def network(text: str) -> IPv4Network | IPv6Network:
    """Parses a network or a single address; `10.1.2.3/8` is 10.0.0.0/8."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise invalid("network", text, "an address and the length of its prefix, such as 10.0.0.0/8") from None


def origin(text: str) -> str:
    """Parses a web page's origin as browsers send it, scheme, host and any port that is not the scheme's, or `*`."""
    if not re.fullmatch(ORIGIN, text):
        raise invalid("origin", text, "scheme and host, such as https://chat.example.com, or * for all")
    return text


def is_loopback(text: str) -> bool:
    """True for a host that only this machine can reach."""
    return ip_address(text).is_loopback if is_address(text) else text == "localhost"


def printable(text: str, kind: str) -> str:
    """Parses text of at least one visible character, without control characters."""
    if not text.strip() or not text.isprintable():
        raise invalid(kind, text, "at least one character, no control characters")
    return text


def kubernetes_name(text: str, kind: str = "name") -> str:
    """Parses a name of a Service or namespace of Kubernetes: a DNS label."""
    if not _KUBERNETES_NAME.fullmatch(text):
        raise invalid(kind, text, "at most 63 of a-z, 0-9 and -, with a letter or digit at both ends")
    return text
