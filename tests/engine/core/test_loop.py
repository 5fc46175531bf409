"""The core's loop with one worker: requests of gateways, and answers."""

import msgspec
import pytest

from legato_engine.scheduler.batch import Sampled
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Cancel, Decode, Generate, Handoff, Pause, Peer, Prefill, Started, Tokens


@pytest.fixture
def worker(world):
    return world.worker("u")


def test_a_sequence_is_announced_once_prefilled_forked_and_decoded_here(world, worker):
    world.generate(worker, choices=(0, 1, 2))
    heard = [frame for frame in worker.heard if isinstance(frame, Started | Tokens)]
    assert heard[0] == Started("r", 1)
    assert all(isinstance(frame, Tokens) for frame in heard[1:])
    for choice in range(3):
        assert worker.tokens(choice=choice) == world.continuation(world.prompt, 12, choice)
        assert worker.items(choice=choice)[-1].finish == "length"
    world.check_done()


def test_all_tokens_of_a_step_are_one_frame_for_a_gateway(world, worker):
    worker.send(*(Generate(f"r{n}", 1, world.sequence([n, n + 1])) for n in range(1, 5)))
    world.run(4)
    assert any(isinstance(frame, Tokens) and len(frame.items) == 4 for frame in worker.heard)


def test_a_cancelled_sequence_ends_and_the_report_has_the_blocks_it_frees_in_the_same_iteration(world, worker):
    world.generate(worker, max_tokens=150, turns=10)
    assert worker.status.load.used_blocks > 0
    worker.send(Cancel("r", 1))
    worker.turn()  # no time passes
    assert worker.status.load.used_blocks == 0
    made = len(worker.tokens())
    world.run(5)
    assert len(worker.tokens()) == made
    world.check_done()


def test_only_the_cancelled_choice_ends_and_its_blocks_are_back(world, worker):
    world.generate(worker, max_tokens=60, choices=(0, 1, 2), turns=20)
    before, made = worker.used, len(worker.tokens(choice=1))
    assert 0 < made < 60
    worker.send(Cancel("r", 1, (1,)))
    world.run(1)
    assert worker.used < before
    world.run(60)
    assert len(worker.tokens(choice=1)) == made
    for choice in (0, 2):
        assert worker.tokens(choice=choice) == world.continuation(world.prompt, 60, choice)
    world.check_done()


OTHER = 8  # another gateway


def of_tenant(world, **params):
    return msgspec.structs.replace(world.sequence(**params), tenant="a")


def served(frames):
    """Tokens of prompts and answers of tenant `a`, of all Loads together."""
    loads = [frame for frame in frames if isinstance(frame, Load)]
    services = [load.served_elsewhere["a"] for load in loads if load.served_elsewhere]
    return sum(each.prompt for each in services), sum(each.output for each in services)


def test_prompts_and_answers_count_where_they_are_computed(world):
    prefill, decode = world.worker("p"), world.worker("d")
    for worker in (prefill, decode):
        worker.send(joined=(world.gateway, OTHER))
    world.run(1)
    world.hand_off(prefill, decode, of_tenant(world, max_tokens=6), turns=40)
    assert [served(worker.others[OTHER]) for worker in (prefill, decode)] == [(len(world.prompt), 0), (0, 6)]


def test_a_paused_sequence_makes_no_tokens_until_it_goes_on(world, worker):
    world.generate(worker, max_tokens=20, turns=6)
    worker.send(Pause("r", 1, True))
    world.run(2)
    made = len(worker.tokens())
    world.run(5)
    assert len(worker.tokens()) == made < 20
    worker.send(Pause("r", 1, False))
    world.run(30)
    assert worker.tokens() == world.continuation(world.prompt, 20)


def test_what_cannot_be_served_is_refused_for_good_and_what_is_too_much_for_now(world, worker):
    worker.send(Generate("long", 1, world.sequence(list(range(300)))))
    worker.send(*(Generate(f"r{n}", 1, world.sequence()) for n in range(20)))
    world.run(1)
    long, *others = [(failed.id, failed.code, failed.retry) for failed in worker.failures()]
    assert long == ("long", "invalid", False)
    assert {refusal[1:] for refusal in others} == {("overloaded", True)}


def test_a_draining_worker_says_so_and_takes_nothing_new_but_finishes(world, worker):
    world.generate(worker, turns=3)
    worker.send(drain=True)
    worker.send(Generate("late", 1, world.sequence()))
    world.run(1)
    assert (worker.status.load.draining, worker.status.idle) == (True, False)
    assert [(failed.id, failed.code, failed.retry) for failed in worker.failures()] == [("late", "draining", True)]
    world.run()
    assert worker.tokens() == world.continuation(world.prompt, 12)
    assert worker.status.idle


def test_a_worker_that_is_recalled_takes_requests_again(world, worker):
    worker.send(drain=True, order=1)
    world.run(1)
    assert worker.status.load.draining
    worker.send(Generate("r", 1, world.sequence()), drain=False, order=2)
    world.run()
    worker.send(Generate("later", 1, world.sequence()))
    world.run()
    assert not worker.status.load.draining
    assert (worker.status.order, worker.status.load.credits > 0) == (2, True)
    assert [failed.code for failed in worker.failures()] == ["draining"], "frames come before the order beside them"
    assert worker.tokens("later") == world.continuation(world.prompt, 12)


def test_a_worker_without_a_link_refuses_hand_offs_and_nothing_else(world):
    worker = world.worker("u", link=False)
    peer = Peer("other", "e", b"other")
    worker.send(Prefill("p", 1, 5, world.sequence(), peer), Decode("d", 1, 6, world.sequence(), peer))
    world.generate(worker)
    assert {failed.id for failed in worker.failures()} == {"p", "d"}
    assert worker.tokens() == world.continuation(world.prompt, 12)


def test_an_unknown_sequence_cannot_be_migrated(world, worker):
    worker.send(Handoff("nobody", 3, 55, Peer("b", "e", b"b")))
    world.run(2)
    assert [(failed.id, failed.attempt, failed.retry) for failed in worker.failures()] == [("nobody", 3, True)]


@pytest.mark.parametrize("at", [1, 3])
def test_only_a_sequence_whose_logits_are_not_finite_fails(world, worker, at):
    step, fault = worker.runner.step, (Sampled(0, None, "not finite"),)

    def broken_step(batch):
        output = step(batch)
        broken = [worker.runner.steps >= at and row.draws and row.draws[0].prompt_len == 2 for row in batch.rows]
        return tuple(fault if bad else row for bad, row in zip(broken, output, strict=True))

    worker.runner.step = broken_step
    worker.send(Generate("bad", 1, world.sequence([8, 9])), Generate("r", 1, world.sequence()))
    world.run(30)
    (failed,) = worker.failures()
    assert (failed.id, failed.code, failed.part, failed.retry) == ("bad", "faulted", "decode", True)
    assert "not finite" in failed.message
    assert worker.tokens("bad") == world.continuation([8, 9], at - 1)
    assert worker.tokens() == world.continuation(world.prompt, 12)
    assert worker.used == 0
