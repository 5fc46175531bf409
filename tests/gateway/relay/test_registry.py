"""The lines in which sub-requests wait for room."""

from legato_gateway.relay.registry import MISSES_PER_PASS, OFFERS_PER_PASS, WaitingLine
from legato_gateway.relay.sub_request import SubRequest


def _line(count):
    line = WaitingLine()
    subs = [SubRequest(f"s{i}", None, (0,)) for i in range(count)]
    for sub in subs:
        line.add(sub)
    return line, subs


def _misses(line, openings=1, fitting=()):
    tried = []

    def take(sub):
        tried.append(sub)
        if sub in fitting:
            line.discard(sub)
            return True
        sub.tried = openings
        return False

    line.offer(openings, take)
    return tried


def test_what_fits_nowhere_goes_to_the_end():
    """Else those that fit nowhere would be offered every turn's room, and the rest none."""
    line, subs = _line(MISSES_PER_PASS + 2)
    assert _misses(line) == subs[:MISSES_PER_PASS]
    assert list(line) == [*subs[MISSES_PER_PASS:], *subs[:MISSES_PER_PASS]]
    assert _misses(line, 2, fitting=subs[-2:])[:2] == subs[-2:]
    assert list(line) == subs[:MISSES_PER_PASS]


def test_nothing_is_offered_twice_while_no_room_opens():
    line, subs = _line(3)
    assert _misses(line, 1) == subs
    assert _misses(line, 1) == []
    assert _misses(line, 2) == subs


def test_a_turn_is_bounded():
    line, subs = _line(10 * OFFERS_PER_PASS)
    assert len(_misses(line, 1)) == MISSES_PER_PASS
    assert len(_misses(line, 1, fitting=subs)) == OFFERS_PER_PASS


def test_what_ended_meanwhile_is_offered_nothing():
    line, (first, second, third) = _line(3)
    line.offer(1, lambda _: line.discard(second))
    assert list(line) == [first, third]
    assert _misses(line) == [first, third]
