"""Reads workers from the EndpointSlices of a headless Service. No I/O: the module `kubernetes` fetches the bytes.

An address counts as soon as it is listed, ready or not: a worker's `Hello` and `Load` say whether it takes requests. A
worker may be in several slices for a while, when endpoints move between them or a pod of the same name follows another,
and always if a Service has both IPv4 and IPv6 addresses. `Slices.workers` has it once.
"""

import contextlib
from collections.abc import Container, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from legato_gateway.discovery.addresses import WorkerAddress
from legato_protocol import names

PLAIN: Final = (names.CONTROL,)
TLS: Final = (names.CONTROL_TLS, names.CONTROL)  # the first one that a worker has
_PREFERRED: Final = {"IPv4": 2, "IPv6": 1}  # not FQDN: such slices have no addresses of pods
_Part = TypeVar("_Part")
_Rank = tuple[bool, int, int]  # the pod stays, preference of the address's family, version of the slice


class Expired(Exception):
    """The watched version is too old: the slices must be listed again."""


class BadAnswer(Exception):
    """The answer breaks the API's contract. The text says how."""


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
    """The fields of an EndpointSlice that are read here. Empty lists come as null or are missing."""

    metadata: Metadata
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None


class Listing(msgspec.Struct, frozen=True):
    metadata: Metadata
    items: tuple[Slice, ...] | None = None


class APIStatus(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Slices:
    """All slices of one Service, by name, as of `version`."""

    def __init__(self, ports: Sequence[str] = PLAIN) -> None:
        """`ports` are names of control ports, preferred ones first."""
        self._ports = ports
        self._slices: dict[str, Slice] = {}
        self.version = ""

    def replace(self, listing: bytes) -> None:
        """Replaces all slices by a listing. Raises BadAnswer."""
        listed = _decoded(listing, Listing)
        self._slices = {item.metadata.name: item for item in listed.items or ()}
        self.version = listed.metadata.resource_version

    def apply(self, line: bytes) -> None:
        """Applies one event of a watch. Raises Expired, BadAnswer."""
        event = _decoded(line, Event)
        if event.type == "ERROR":
            status = _decoded(bytes(event.object), APIStatus)
            raise Expired(status.message) if status.code == 410 else BadAnswer(f"{status.code}: {status.message}")
        item = _decoded(bytes(event.object), Slice)
        if event.type == "DELETED":
            self._slices.pop(item.metadata.name, None)
        elif event.type != "BOOKMARK":
            self._slices[item.metadata.name] = item
        self.version = item.metadata.resource_version

    @property
    def uids(self) -> frozenset[str]:
        """UIDs of all pods with an address and a control port in the slices."""
        return frozenset(pod.uid for item in self._slices.values() for pod, _, _ in _addresses(item, self._ports))

    def workers(self, uids: Container[str]) -> tuple[WorkerAddress, ...]:
        """Returns the workers among `uids`, each once, by name.

        A pod that stays is preferred to one that terminates, then IPv4 to IPv6, then a newer slice to an older.
        """
        best: dict[str, tuple[_Rank, str, str]] = {}
        for item in self._slices.values():
            for pod, rank, address in _addresses(item, self._ports):
                candidate = rank, *address
                if pod.uid in uids and (pod.name not in best or candidate > best[pod.name]):
                    best[pod.name] = candidate
        chosen = sorted(best.items())
        return tuple(WorkerAddress(name, host, port == names.CONTROL_TLS) for name, (_, host, port) in chosen)


def message(refusal: bytes) -> str:
    """Returns the message in the body of a refused call."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(refusal, type=APIStatus).message
    return refusal[:200].decode(errors="replace")


def _addresses(item: Slice, preferred: Sequence[str]) -> Iterator[tuple[Target, _Rank, tuple[str, str]]]:
    """Yields pod, rank among the pod's addresses, and address with the name of its port."""
    ports = {port.name: port.port for port in item.ports or () if port.port is not None}
    name = next((name for name in preferred if name in ports), "")
    port = ports.get(name)
    family = _PREFERRED.get(item.address_type)
    if port is None or family is None:
        return
    version = item.metadata.resource_version
    newness = int(version) if version.isdecimal() else 0
    for endpoint in item.endpoints or ():
        pod = endpoint.target_ref
        if pod is not None and pod.kind == "Pod" and pod.name and endpoint.addresses:
            host = endpoint.addresses[0]  # all addresses of an endpoint belong to one pod
            leaving = endpoint.conditions is not None and bool(endpoint.conditions.terminating)
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            yield pod, (not leaving, family, newness), (address, name)


def _decoded(data: bytes, kind: type[_Part]) -> _Part:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the API's answer is not a {kind.__name__}: {error}") from None
