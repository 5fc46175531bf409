"""Which workers the EndpointSlices of a headless Service tell of. No I/O: `kubernetes` brings the bytes.

An address counts from the moment it is listed, ready or not: whether a worker takes requests is what its `Hello` and
`Load` say. A worker may be in several slices for a while, when endpoints are moved between them, when a pod of the same
name follows another, and always where a Service has both kinds of addresses: it is told once.
"""

import contextlib
from collections.abc import Container, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from legato_gateway.discovery.addresses import WorkerAddress
from legato_protocol import names

PLAIN: Final = (names.CONTROL,)
TLS: Final = (names.CONTROL_TLS, names.CONTROL)  # of a worker that has both, the first
_PREFERRED: Final = {"IPv4": 2, "IPv6": 1}  # FQDN slices hold no address of a pod
_Part = TypeVar("_Part")
_Rank = tuple[bool, int, int]


class Expired(Exception):
    """What was being watched is too old by now: it is to be listed again."""


class BadAnswer(Exception):
    """Not what the API promises. The text says how."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class Target(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Conditions(msgspec.Struct, frozen=True):
    terminating: bool | None = None


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: tuple[str, ...] = ()
    conditions: Conditions | None = None
    target_ref: Target | None = None


class Port(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class Slice(msgspec.Struct, frozen=True, rename="camel"):
    """The part of an EndpointSlice that is read here. Empty lists come as null or not at all."""

    metadata: Metadata
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None


class Listing(msgspec.Struct, frozen=True):
    metadata: Metadata
    items: tuple[Slice, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Slices:
    """All slices of one Service, by name, as of `version`."""

    def __init__(self, ports: Sequence[str] = PLAIN) -> None:
        """`ports` are names of control ports, those to be preferred first."""
        self._ports = ports
        self._slices: dict[str, Slice] = {}
        self.version = ""

    def replace(self, listing: bytes) -> None:
        """What the API lists now. Raises BadAnswer."""
        found = _decoded(listing, Listing)
        self._slices = {item.metadata.name: item for item in found.items or ()}
        self.version = found.metadata.resource_version

    def apply(self, line: bytes) -> None:
        """One event of a watch. Raises Expired, BadAnswer."""
        event = _decoded(line, Event)
        if event.type == "ERROR":
            status = _decoded(bytes(event.object), Status)
            raise Expired(status.message) if status.code == 410 else BadAnswer(f"{status.code}: {status.message}")
        item = _decoded(bytes(event.object), Slice)
        if event.type == "DELETED":
            self._slices.pop(item.metadata.name, None)
        elif event.type != "BOOKMARK":
            self._slices[item.metadata.name] = item
        self.version = item.metadata.resource_version

    @property
    def uids(self) -> frozenset[str]:
        """Of all pods that they tell of."""
        return frozenset(pod.uid for item in self._slices.values() for pod, _, _ in _told(item, self._ports))

    def workers(self, uids: Container[str]) -> tuple[WorkerAddress, ...]:
        """Those of `uids`, each once, by name: where a pod lives on rather than where one ends, as the newest slice has
        it.
        """
        best: dict[str, tuple[_Rank, str, str]] = {}
        for item in self._slices.values():
            for pod, rank, address in _told(item, self._ports):
                told = rank, *address
                if pod.uid in uids and (pod.name not in best or told > best[pod.name]):
                    best[pod.name] = told
        found = sorted(best.items())
        return tuple(WorkerAddress(name, host, port == names.CONTROL_TLS) for name, (_, host, port) in found)


def message(refusal: bytes) -> str:
    """What the body of a refused call says."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(refusal, type=Status).message
    return refusal[:200].decode(errors="replace")


def _told(item: Slice, preferred: Sequence[str]) -> Iterator[tuple[Target, _Rank, tuple[str, str]]]:
    """Pod, rank among all that tell of it, address and name of the port."""
    ports = {port.name: port.port for port in item.ports or () if port.port is not None}
    name = next((name for name in preferred if name in ports), "")
    port = ports.get(name)
    family = _PREFERRED.get(item.address_type)
    if port is None or family is None:
        return
    version = item.metadata.resource_version
    age = int(version) if version.isdecimal() else 0
    for endpoint in item.endpoints or ():
        pod = endpoint.target_ref
        if pod is not None and pod.kind == "Pod" and pod.name and endpoint.addresses:
            host = endpoint.addresses[0]  # all of an endpoint's addresses are the same pod's
            leaving = endpoint.conditions is not None and bool(endpoint.conditions.terminating)
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            yield pod, (not leaving, family, age), (address, name)


def _decoded(data: bytes, kind: type[_Part]) -> _Part:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the API's answer is no {kind.__name__}: {error}") from None
