"""The owner of stored responses: bounded in seconds and bytes, each tenant for itself, whatever comes."""

import random

from legato_gateway.openai.responses.store import ResponseStore, StoredResponse, StorePolicy, Turn


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def store(seconds: float = 100.0, size: int = 1000) -> tuple[ResponseStore, Clock]:
    clock = Clock()
    return ResponseStore(StorePolicy(seconds, size), clock), clock


def response(id: str, size: int = 10, turns: tuple[Turn, ...] = ()) -> StoredResponse:
    return StoredResponse(id, b"x" * size, turns)


def test_a_response_is_kept_for_its_time() -> None:
    kept, clock = store(seconds=100)
    kept.put("a", response("1"))
    clock.now = 60.0
    kept.put("a", response("2"))
    clock.now = 99.9
    assert kept.get("a", "1") is not None
    clock.now = 100.0
    assert kept.get("a", "1") is None
    assert kept.get("a", "2") is not None
    assert kept.responses == 1
    clock.now = 160.0
    assert kept.get("b", "1") is None
    assert (kept.responses, kept.used, kept.evicted) == (0, 0, 0)


def test_a_tenant_finds_its_own_alone() -> None:
    kept, _ = store()
    kept.put("a", response("1"))
    for other in ("b", ""):
        assert kept.get(other, "1") is None
        assert not kept.delete(other, "1")
    assert kept.delete("a", "1")
    assert not kept.delete("a", "1")
    kept.check_integrity()


def test_the_oldest_of_the_tenant_that_holds_most_gives_way() -> None:
    kept, _ = store(size=100)
    kept.put("b", response("0"))
    for number in range(1, 10):
        kept.put("a", response(str(number)))
    kept.put("b", response("10"))
    assert kept.get("a", "1") is None
    assert kept.get("b", "0") is not None
    assert kept.get("a", "2") is not None
    assert (kept.used, kept.evicted) == (100, 1)


def test_one_that_is_too_large_drops_no_other() -> None:
    kept, _ = store(size=100)
    kept.put("a", response("1"))
    kept.put("a", response("2", 50, (Turn(b"x" * 51),)))
    assert kept.get("a", "2") is None
    assert kept.get("a", "1") is not None
    assert kept.evicted == 1


def test_turns_are_counted_once_and_live_as_long_as_a_response_that_has_them() -> None:
    kept, _ = store()
    first, second = Turn(b"x" * 100), Turn(b"x" * 100)
    kept.put("a", response("1", 10, (first,)))
    kept.put("a", response("2", 10, (first, second)))
    assert kept.used == 220
    kept.delete("a", "1")
    assert kept.used == 210
    found = kept.get("a", "2")
    assert found is not None
    assert found.turns == (first, second)
    kept.check_integrity()


def test_random_operations_keep_the_books() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        kept, clock = store(seconds=50, size=400)
        for number in range(80):
            tenant = draw.choice("ab")
            clock.now += draw.choice([0.0, 1.0, 30.0])
            some = str(draw.randrange(number + 1))
            before = kept.get(tenant, some)
            turns = (*(before.turns if before else ()), Turn(b"x" * draw.randrange(60)))
            if draw.random() < 0.2:
                kept.delete(tenant, some)
            else:
                kept.put(tenant, response(str(number), draw.randrange(100), turns))
            kept.check_integrity()
