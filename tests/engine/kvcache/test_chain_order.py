"""Blocks of three sequences, a, b and c, of three blocks each: which are evicted, and in what order."""

import pytest

from legato_engine.kvcache.chain_order import ChainOrder
from legato_engine.kvcache.moves import Content


def content(name):
    """Block `a1` continues `a0`."""
    number = int(name[1:])
    return Content(name.encode(), f"{name[0]}{number - 1}".encode() if number else None, 0)


def add(order, name, now=0.0):
    order.expect(content(name))
    order.add(content(name), now)


def evicted(order):
    names = []
    while (key := order.first()) is not None:
        names.append(key[1].decode())
        order.remove(content(names[-1]))
        order.check_integrity({key: content(key[1].decode()) for key in order._used}, 1)
    return names


@pytest.mark.parametrize(
    ("used", "names"),
    [
        ([], "a2 a1 a0 b2 b1 b0 c2 c1 c0"),
        (["a2"], "b2 b1 b0 c2 c1 c0 a2 a1 a0"),
        (["a0", "a1", "a2"], "b2 b1 b0 c2 c1 c0 a2 a1 a0"),
        (["a0", "a1"], "a2 b2 b1 b0 c2 c1 c0 a1 a0"),
        (["b1", "a2"], "b2 c2 c1 c0 a2 a1 a0 b1 b0"),
    ],
)
def test_the_sequence_not_used_for_longest_loses_its_last_blocks_first(used, names):
    order = ChainOrder()
    for now, sequence in enumerate("abc"):
        for number in range(3):
            add(order, f"{sequence}{number}", now)
    for name in used:
        order.use((0, name.encode()), 9.0)
    assert evicted(order) == names.split()


def test_blocks_may_be_added_in_any_order_and_an_expected_one_keeps_its_parent():
    order = ChainOrder()
    for name in ("a2", "a0", "b0", "a1"):
        add(order, name)
    order.expect(content("b1"))
    assert evicted(order) == ["a2", "a1", "a0"]
    order.forget(content("b1"))
    assert evicted(order) == ["b0"]
    assert not order._continued


def test_a_block_that_was_just_added_is_not_the_next_to_evict_because_its_successor_failed():
    order = ChainOrder()
    add(order, "a0", 1.0)
    add(order, "b0", 2.0)
    order.expect(content("b1"))
    order.forget(content("b1"))
    assert evicted(order) == ["a0", "b0"]
