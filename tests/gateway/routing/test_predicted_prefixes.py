"""Predicted prefixes of workers: never more than was sent to them, and at most for the time that it may be true."""

import random
from itertools import pairwise

from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.routing.predicted_prefixes import PLACES, PredictedPrefixes
from legato_protocol.wire.block_hash import chain, root
from legato_protocol.wire.packed_tokens import pack_tokens


def hashes(*parts: tuple[int, int]) -> list[bytes]:
    """Hashes of a prompt whose parts are this many blocks of a token."""
    found: list[bytes] = []
    for blocks, token in parts:
        found += chain(pack_tokens([token] * 4 * blocks), 4, found[-1] if found else root("r"))
    return found


def test_places_are_close_at_first_and_never_farther_apart_than_an_eighth():
    assert PLACES[:8] == (1, 2, 3, 4, 5, 6, 7, 8)
    assert all(after - before <= max(1, before // 8) for before, after in pairwise(PLACES))


def test_a_prompt_is_predicted_whole_and_one_that_shares_its_beginning_in_part():
    predicted = PredictedPrefixes()
    predicted.add("r1", "p0", "e", hashes((1000, 1)), expires=10.0)
    assert predicted.match(hashes((1000, 1)), 0.0) == {("p0", "e"): 1000}
    assert predicted.match(hashes((10, 1), (50, 2)), 0.0) == {("p0", "e"): 10}
    assert predicted.match(hashes((9, 2)), 0.0) == {}
    assert predicted.match([], 0.0) == {}


def test_a_prediction_ends_when_it_expires_is_shortened_or_removed():
    predicted = PredictedPrefixes()
    for id, expires in (("a", 5.0), ("b", 10.0), ("c", 10.0)):
        predicted.add(id, id, "e", hashes((9, 1)), expires)
    assert set(predicted.match(hashes((9, 1)), 4.9)) == {("a", "e"), ("b", "e"), ("c", "e")}
    predicted.shorten("b", 7.0)
    predicted.shorten("a", 9.0)
    predicted.shorten("unknown", 1.0)
    assert set(predicted.match(hashes((9, 1)), 5.0)) == {("b", "e"), ("c", "e")}
    assert set(predicted.match(hashes((9, 1)), 7.0)) == {("c", "e")}
    predicted.remove("c")
    predicted.remove("c")
    predicted.add("b", "b", "e", [], 10.0)
    assert predicted.match(hashes((9, 1)), 7.0) == {}
    assert len(predicted) == 0
    predicted.check_integrity()


@settings(max_examples=times(30), deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_predicted_is_that_of_live_predictions_at_most_a_ninth_short(seed):
    source, predicted, now = random.Random(seed), PredictedPrefixes(), 0.0
    live: dict[str, tuple[tuple[str, str], list[bytes], float]] = {}

    def prompt() -> list[bytes]:
        return hashes(*((source.choice((1, 7, 40, 90)), source.randint(1, 2)) for _ in range(source.randint(1, 4))))

    for _ in range(30):
        id, now = source.choice("abcdef"), now + source.random()
        if source.random() < 0.7:
            holder = source.choice(("p0", "p1")), source.choice("ef")
            sent, expires = prompt(), now + source.random() * 9
            predicted.add(id, *holder, sent, expires)
            live[id] = (holder, sent, expires)
        else:
            predicted.remove(id)
            live.pop(id, None)
        asked = prompt()
        found = predicted.match(asked, now)
        truth: dict[tuple[str, str], int] = {}
        for holder, sent, expires in live.values():
            if expires > now and (blocks := len({*sent} & {*asked})):  # each names all before it
                truth[holder] = max(truth.get(holder, 0), blocks)
        assert found.keys() == truth.keys()
        assert all(found[holder] <= blocks <= found[holder] * 9 / 8 + 1 for holder, blocks in truth.items())
        predicted.check_integrity()
