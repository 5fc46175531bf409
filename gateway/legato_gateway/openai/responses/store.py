"""Responses stored for a time, so that they can be read again and continued. Pure: nothing waits in here.

They are in the memory of one gateway, bounded in seconds and in bytes. A tenant can only see its own. A response keeps
all turns of the conversation up to it, and can be continued when earlier ones are gone. Responses share turns.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

RESPONSE_BYTES: Final = 512  # memory of a response in addition to its JSON: its objects, id and dictionary entries
TURN_BYTES: Final = 160


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """Responses are kept for `seconds`, and together take at most `bytes`."""

    seconds: float
    bytes: int


@dataclass(slots=True, eq=False)
class Turn:
    """Items of one request or of its answer, as JSON, after the turn `before`.

    `users` counts the stored responses that end with it, and the kept turns right after it.
    """

    items: bytes
    before: "Turn | None" = field(default=None, repr=False)
    users: int = field(default=0, init=False)
    conversation_bytes: int = field(init=False)  # of all turns up to this one

    def __post_init__(self) -> None:
        self.conversation_bytes = self.bytes + (self.before.conversation_bytes if self.before else 0)

    @property
    def bytes(self) -> int:
        """Memory of this turn only."""
        return TURN_BYTES + len(self.items)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`json` is the client's view, and `last` the last turn of its conversation."""

    id: str
    json: bytes
    last: Turn | None

    @property
    def bytes(self) -> int:
        """Memory without its turns."""
        return RESPONSE_BYTES + len(self.json)

    def turns(self) -> list[Turn]:
        """Returns the turns of its conversation, first to last."""
        return list(_back_from(self.last))[::-1]

    def input_turns(self) -> list[Turn]:
        """Returns all turns but its answer."""
        return self.turns()[:-1]


def _back_from(turn: Turn | None) -> Iterator[Turn]:
    while turn is not None:
        yield turn
        turn = turn.before


@dataclass(slots=True, eq=False)
class _Tenant:
    responses: "OrderedDict[str, tuple[float, StoredResponse]]" = field(default_factory=OrderedDict)  # with its end
    used: int = 0

    def add(self, response: StoredResponse, end: float) -> None:
        self.responses[response.id] = (end, response)
        self.used += response.bytes
        for turn in _back_from(response.last):
            turn.users += 1
            if turn.users > 1:
                break  # it and all earlier turns are kept already
            self.used += turn.bytes

    def drop(self, id: str) -> None:
        _, response = self.responses.pop(id)
        self.used -= response.bytes
        for turn in _back_from(response.last):
            turn.users -= 1
            if turn.users:
                break
            self.used -= turn.bytes

    def drop_oldest(self) -> None:
        self.drop(next(iter(self.responses)))

    def check_integrity(self) -> None:
        """Raises AssertionError unless its counts match its responses."""
        assert self.responses, "a tenant without responses is kept"
        kept = [response for _, response in self.responses.values()]
        turns: set[Turn] = set()
        for response in kept:
            turns.update(takewhile(lambda turn: turn not in turns, _back_from(response.last)))
        users = Counter(turn for turn in (*(one.last for one in kept), *(one.before for one in turns)) if turn)
        assert all(turn.users == users[turn] for turn in turns), "users of a turn are miscounted"
        size = sum(len(response.json) for response in kept) + sum(len(turn.items) for turn in turns)
        size += RESPONSE_BYTES * len(kept) + TURN_BYTES * len(turns)
        assert self.used == size, "bytes of a tenant are miscounted"


class ResponseStore:
    """Owner of the memory of stored responses. `clock` returns seconds."""

    def __init__(self, policy: StorePolicy, clock: Callable[[], float]) -> None:
        self.policy = policy
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self.evicted = 0  # responses that were dropped early, or never stored

    @property
    def responses(self) -> int:
        """Number of stored responses."""
        return sum(len(tenant.responses) for tenant in self._tenants.values())

    @property
    def used(self) -> int:
        """Bytes of stored responses."""
        return sum(tenant.used for tenant in self._tenants.values())

    def put(self, tenant: str, response: StoredResponse) -> None:
        """Stores a response, unless it alone exceeds the limit. For room, the largest tenant's oldest responses are
        dropped."""
        self._drop_expired()
        if response.bytes + (response.last.conversation_bytes if response.last else 0) > self.policy.bytes:
            self.evicted += 1
            return
        self._tenants.setdefault(tenant, _Tenant()).add(response, self._clock() + self.policy.seconds)
        while self.used > self.policy.bytes:
            name, most = max(self._tenants.items(), key=lambda item: item[1].used)
            most.drop_oldest()
            self.evicted += 1
            self._forget_empty(name)

    def get(self, tenant: str, id: str) -> StoredResponse | None:
        """Returns that tenant's response of this id, or None."""
        self._drop_expired()
        responses = self._tenants.get(tenant)
        entry = responses.responses.get(id) if responses else None
        return entry[1] if entry else None

    def delete(self, tenant: str, id: str) -> bool:
        """Deletes a response. Returns False if it is not stored."""
        if self.get(tenant, id) is None:
            return False
        self._tenants[tenant].drop(id)
        self._forget_empty(tenant)
        return True

    def check_integrity(self) -> None:
        """Raises AssertionError unless all counts match."""
        for tenant in self._tenants.values():
            tenant.check_integrity()
        assert self.used <= self.policy.bytes, "more than the limit is kept"

    def _drop_expired(self) -> None:
        now = self._clock()
        for name, tenant in list(self._tenants.items()):
            while tenant.responses and next(iter(tenant.responses.values()))[0] <= now:
                tenant.drop_oldest()
            self._forget_empty(name)

    def _forget_empty(self, name: str) -> None:
        if not self._tenants[name].responses:
            del self._tenants[name]
