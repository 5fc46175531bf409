"""Reads the pods that are workers of the service from its WorkerPools. No I/O: `kubernetes` fetches the bytes.

Slices list every pod with the service's labels, whoever made it, and a worker is sent the service's token.
"""

from collections.abc import Iterable, Set
from typing import Final

import msgspec

from legato_gateway.discovery.endpoint_slices import BadAnswer

ROLES: Final = ("prefill", "decode")


class Status(msgspec.Struct, frozen=True):
    workers: tuple[str, ...] | None = None  # UIDs of pods; None: an operator that does not report them


class PoolMembers(msgspec.Struct, frozen=True):
    """The fields of a WorkerPool that are read here."""

    status: Status = Status()


def pools(workers_service: str) -> tuple[str, ...]:
    """Returns the names of the WorkerPools whose workers are behind that headless Service."""
    service = workers_service.removesuffix("-workers")
    return tuple(f"{service}-{role}" for role in ROLES)


class Members:
    """Pods known to be workers. A worker stays one: its streams outlive its pool."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def doubts(self, uids: Set[str]) -> bool:
        """True if one of these pods is not a known worker."""
        return not uids <= self._known

    def learn(self, uids: Set[str], answers: Iterable[bytes | None]) -> None:
        """Learns from the pools; None for a missing one. If none reports its workers, all these pods are workers.

        Raises BadAnswer.
        """
        lists = [_workers(answer) for answer in answers if answer is not None]
        reported = [workers for workers in lists if workers is not None]
        own = {uid for workers in reported for uid in workers} if reported else uids
        self._known = (self._known | own) & uids

    @property
    def known(self) -> frozenset[str]:
        """UIDs of known workers."""
        return self._known


def _workers(answer: bytes) -> tuple[str, ...] | None:
    try:
        return msgspec.json.decode(answer, type=PoolMembers).status.workers
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the API's answer is not a WorkerPool: {error}") from None
