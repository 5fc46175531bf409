"""Slots of the host's memory: who has which, how many there are, and copies between them and an arena."""

from random import Random

import pytest
from handoff_pair import BLOCKS, HASHES, ROOT, Pair

from legato_engine.errors import TooLittleMemory
from legato_engine.transfer.device.interface import POLL_INTERVAL
from legato_engine.transfer.device.staging import Slots, slot_counts
from legato_engine.transfer.session.events import Aborted, Arrived, Granted, GrantRevoked

MIB = 1 << 20


def test_slots_are_taken_all_or_not_at_all():
    slots = Slots(10, 4)
    first = slots.take(3)
    assert slots.take(2) is None
    assert sorted((*first, *slots.take(1))) == [10, 11, 12, 13]
    slots.give_back(first)
    assert slots.free == 3
    for wrong in (first, (14,), (13, 13)):
        with pytest.raises(ValueError, match="were not all taken"):
            slots.give_back(wrong)
    assert slots.free == 3


def test_the_lowest_free_slots_are_taken_in_their_order():
    """However they came back, so that most of them are neighbours."""
    slots = Slots(10, 8)
    taken = slots.take(8)
    for slot in (15, 11, 17, 12, 10):
        slots.give_back([slot])
    assert taken == (10, 11, 12, 13, 14, 15, 16, 17)
    assert slots.take(4) == (10, 11, 12, 15)


@pytest.mark.parametrize(
    ("block", "longest", "num_blocks", "available", "many", "counts"),
    [
        (2, 10, 10000, 100000, True, (4096, 32)),  # 8 GiB, and 64 MiB
        (2, 5000, 10000, 100000, True, (5000, 32)),
        (2, 10, 1000, 4000, True, (500, 32)),  # a quarter of 4,000 MiB, and 64 MiB
        (2, 600, 1000, 4000, True, (600, 32)),  # no fewer than the longest sequence needs
        (2, 10, 300, 4000, True, (300, 32)),  # no more than the arena has
        (2, 10, 20, 4000, True, (20, 20)),
        (2, 10, 1000, 84, True, (10, 32)),
        (2, 10, 1000, 4000, False, (10, 32)),  # hardly any sequence lands: only the longest has slots
        (40, 2, 100, 400, True, (2, 4)),  # blocks larger than the ring's share have four slots there
    ],
)
def test_slots_follow_from_the_host_s_memory(block, longest, num_blocks, available, many, counts):
    assert slot_counts(block * MIB, longest, num_blocks, available * MIB, many=many) == counts


def test_too_little_memory_of_the_host_is_refused_with_what_is_needed():
    with pytest.raises(TooLittleMemory, match=r"need 88,080,384 bytes of the host's.* 88,080,383 are available: give"):
        slot_counts(2 * MIB, 10, 1000, 84 * MIB - 1, many=True)


def staged(landing=4, ring=4, delay=0.0):
    return Pair(staged=(Random(0), landing, ring, delay), lease=100.0)


def test_a_grant_that_no_slots_are_left_for_waits_for_those_of_another_and_nobody_looks_after_it():
    pair = staged()
    pair.begin()
    receiver = pair.receiver.agent
    pair.offer(2, [5, 6])
    pair.run()
    assert [event.room for event in pair.sender.events(Granted)] == [1]
    assert receiver.counts().grants_without_slots == 1
    assert receiver.next_timer() != POLL_INTERVAL
    pair.hand_over()
    assert pair.receiver.events(Arrived)
    assert [event.room for event in pair.sender.events(Granted)] == [1, 2]
    assert receiver.counts().grants_without_slots == 0


def test_a_grant_that_waits_for_slots_is_taken_back_at_once():
    pair = staged()
    pair.begin()
    pair.receiver.agent.grant(2, 1, pair.sender.peer, [5, 6], 0, ROOT)
    pair.run()
    pair.receiver.agent.revoke(2)
    pair.run()
    assert [event.room for event in pair.receiver.events(GrantRevoked)] == [2]
    assert pair.receiver.staged.staging.landing.free == 0


def test_more_blocks_than_can_land_are_refused():
    pair = staged(landing=3)
    with pytest.raises(ValueError, match="4 blocks do not fit the landing memory of 3"):
        pair.grant()
    pair.grant(table=range(BLOCKS), cached=5)


def test_a_push_is_put_in_parts_that_fit_into_the_ring():
    pair = staged(ring=2)
    puts, put = [], pair.sender.link.put
    pair.sender.link.put = lambda connection, spans, tag: (puts.append(spans), put(connection, spans, tag))
    pair.begin()
    pair.sender.agent.push(1, 0, range(4), HASHES)
    pair.run()
    assert [[span.length for span in spans] for spans in puts] == [[64]] * 4
    assert pair.sender.staged.staging.ring.free == 2


@pytest.mark.parametrize("aborted", [False, True])
def test_grants_wait_for_slots_in_their_order_and_longer_than_a_lease(aborted):
    """One that would fit does not overtake, and their sender is not taken for silent: nothing is missing from it."""
    pair = Pair(staged=(Random(0), 4, 4, 0.0))
    pair.begin(table=range(3) if aborted else range(4))
    for room, table in ((2, (4, 5)), (3, (6,))):
        pair.offer(room, table)
    pair.run(5.0)
    assert [event.room for event in pair.sender.events(Granted)] == [1]
    assert not pair.receiver.events(Aborted)
    if aborted:
        pair.receiver.agent.abort(1, "cancelled")
        pair.run()
    else:
        pair.hand_over()
    assert [event.room for event in pair.sender.events(Granted)] == [1, 2, 3]
