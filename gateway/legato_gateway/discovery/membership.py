"""Which pods are workers of the service, as its WorkerPools tell. No I/O: `kubernetes` brings the bytes.

Slices list every pod that carries the service's labels, whoever made it, and a worker is sent the service's token.
"""

from collections.abc import Iterable, Set
from typing import Final

import msgspec

from legato_gateway.discovery.endpoint_slices import BadAnswer

ROLES: Final = ("prefill", "decode")


class Status(msgspec.Struct, frozen=True):
    workers: tuple[str, ...] | None = None  # UIDs of pods; None: an operator that does not tell


class Pool(msgspec.Struct, frozen=True):
    """The part of a WorkerPool that is read here."""

    status: Status = Status()


def pools(workers_service: str) -> tuple[str, ...]:
    """The names of the WorkerPools whose workers are behind that headless Service."""
    service = workers_service.removesuffix("-workers")
    return tuple(f"{service}-{role}" for role in ROLES)


class Members:
    """Pods that are known to be workers. One that was stays so: its streams outlive its pool."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()

    def doubts(self, uids: Set[str]) -> bool:
        """Whether it has to be asked of one of these pods."""
        return not uids <= self._known

    def learn(self, uids: Set[str], answers: Iterable[bytes | None]) -> None:
        """What the pools tell, None for one that is not there. Where none of them tells, all these pods are workers.

        Raises BadAnswer.
        """
        found = [_workers(answer) for answer in answers if answer is not None]
        told = [workers for workers in found if workers is not None]
        own = {uid for workers in told for uid in workers} if told else uids
        self._known = (self._known | own) & uids

    @property
    def known(self) -> frozenset[str]:
        """UIDs."""
        return self._known


def _workers(answer: bytes) -> tuple[str, ...] | None:
    try:
        return msgspec.json.decode(answer, type=Pool).status.workers
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the API's answer is no WorkerPool: {error}") from None
