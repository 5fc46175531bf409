"""Frames of a gateway that repeats itself or mixes things up: each is refused by itself, and all else goes on."""

import pytest

from legato_protocol.wire.stream import Decode, Generate, Handoff, Peer, Prefill


def test_a_room_that_is_in_use_is_refused_on_either_side_and_its_hand_off_goes_on(world):
    prefill, decode = world.worker("p", chunk=4), world.worker("d")
    world.hand_off(prefill, decode, world.sequence())
    prefill.send(Prefill("other", 1, 99, world.sequence(), decode.peer))
    decode.send(Decode("other", 1, 99, world.sequence(), prefill.peer))
    world.run()
    for worker in (prefill, decode):
        assert [(failed.id, failed.code, failed.retry) for failed in worker.failures()] == [("other", "invalid", False)]
    assert decode.tokens() == world.continuation(world.prompt, 12)
    assert prefill.used == decode.used == 0


def test_a_migration_to_a_room_that_is_in_use_is_refused_and_the_sequence_stays(world):
    old, new = world.worker("a"), world.worker("b")
    old.send(Prefill("p", 1, 99, world.sequence(), new.peer))
    world.generate(old, turns=5)
    old.send(Handoff("r", 2, 99, new.peer))
    world.run()
    assert [(failed.id, failed.code) for failed in old.failures()] == [("r", "invalid")]
    assert old.tokens() == world.continuation(world.prompt, 12)


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_attempt_that_is_known_or_older_than_a_known_one_is_refused(world, attempt):
    worker = world.worker("a")
    worker.send(*(Generate("r", number, world.sequence()) for number in (2, attempt)))
    world.run()
    assert [(failed.attempt, failed.code) for failed in worker.failures()] == [(attempt, "invalid")]
    assert worker.tokens(attempt=2) == world.continuation(world.prompt, 12)
    assert worker.used == 0


def test_a_room_that_had_a_hand_off_before_fails_as_a_hand_off(world):
    prefill, decode = world.worker("p"), world.worker("d")
    world.hand_off(prefill, decode, world.sequence(), turns=60)
    world.hand_off(prefill, decode, world.sequence(), id="again", turns=60)
    for worker in (prefill, decode):
        assert {(failed.id, failed.code) for failed in worker.failures()} == {("again", "transfer")}
        assert worker.used == 0


def test_a_peer_whose_address_is_none_is_not_there(world):
    decode = world.worker("d")
    decode.send(Decode("r", 1, 99, world.sequence(), Peer("nobody", "gone", b"nowhere:70000")))
    world.run()
    assert [failed.code for failed in decode.failures()] == ["peer_lost"]
    assert decode.used == 0
