"""The owner of stored responses: bounded in seconds and bytes, each tenant for itself, whatever comes."""

import random

from budget import times
from scripted_gateway import Clock

from legato_gateway.openai.responses import store as stored
from legato_gateway.openai.responses.store import RESPONSE_BYTES, TURN_BYTES, ResponseStore, StoredResponse, Turn

ROOM = RESPONSE_BYTES + 10  # that the response of a test takes


def store(seconds: float = 100.0, size: int = 10 * ROOM) -> tuple[ResponseStore, Clock]:
    clock = Clock()
    return ResponseStore(stored.StorePolicy(seconds, size), clock), clock


def response(id: str, size: int = 10, last: Turn | None = None) -> StoredResponse:
    return StoredResponse(id, b"x" * size, last)


def test_the_oldest_of_the_tenant_that_holds_most_gives_way():
    kept, _ = store(size=10 * ROOM)
    for number in range(11):
        kept.put("b" if number in (0, 10) else "a", response(str(number)))
    assert [bool(kept.get(tenant, id)) for tenant, id in (("a", "1"), ("b", "0"), ("a", "2"))] == [False, True, True]
    assert (kept.used, kept.evicted) == (10 * ROOM, 1)


def test_one_that_is_too_large_drops_no_other():
    kept, _ = store(size=10 * ROOM)
    kept.put("a", response("1"))
    rest = 10 * ROOM - 2 * TURN_BYTES - ROOM
    kept.put("a", response("2", 10, Turn(b"x" * 10, Turn(b"x" * (rest - 9)))))
    assert (kept.get("a", "2"), kept.get("a", "1") is not None, kept.evicted) == (None, True, 1)
    kept.put("a", response("3", 10, Turn(b"x" * 10, Turn(b"x" * (rest - 10)))))
    assert (kept.get("a", "3") is not None, kept.responses, kept.used) == (True, 1, 10 * ROOM)
    kept.check_integrity()


def test_random_operations_keep_the_books():
    for seed in range(times(10)):
        draw = random.Random(seed)
        kept, clock = store(seconds=50, size=6 * RESPONSE_BYTES)
        for number in range(80):
            tenant = draw.choice("ab")
            clock.now += draw.choice([0.0, 1.0, 30.0])
            some = str(draw.randrange(number + 1))
            before = kept.get(tenant, some)
            turn = Turn(b"x" * draw.randrange(60), before.last if before else None)
            if draw.random() < 0.2:
                kept.delete(tenant, some)
            else:
                kept.put(tenant, response(str(number), draw.randrange(100), turn))
            kept.check_integrity()
