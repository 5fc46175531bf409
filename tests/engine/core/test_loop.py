"""The core's loop with one worker: what gateways ask, and what they are told."""

import msgspec
import pytest

from legato_engine.core import frames
from legato_engine.core.frames import Turn
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.output_lengths import LEAST_ANSWERS
from legato_protocol.load import Load
from legato_protocol.stream import Begun, Cancel, Decode, Generate, Handoff, Pause, Peer, Prefill, Tokens


def test_a_sequence_is_prefilled_and_decoded_here(world):
    worker = world.worker("u")
    world.generate(worker)
    assert worker.tokens() == world.continuation(world.prompt, 12)
    assert worker.items()[-1].finish == "length"
    assert worker.used == 0


def test_a_sequence_is_announced_once_and_before_its_first_step(world):
    worker = world.worker("u")
    world.generate(worker, choices=(0, 1))
    told = [frame for frame in worker.heard if isinstance(frame, Begun | Tokens)]
    assert told[0] == Begun("r", 1)
    assert all(isinstance(frame, Tokens) for frame in told[1:])


def test_all_tokens_of_a_step_are_one_frame_for_a_gateway(world):
    worker = world.worker("u")
    worker.tell(*(Generate(f"r{n}", 1, world.sequence([n, n + 1])) for n in range(1, 5)))
    world.run(4)
    assert any(isinstance(frame, Tokens) and len(frame.items) == 4 for frame in worker.heard)


def test_choices_fork_after_the_prompt(world):
    worker = world.worker("u")
    world.generate(worker, choices=(0, 1, 2))
    for choice in range(3):
        assert worker.tokens(choice=choice) == world.continuation(world.prompt, 12, choice)


def test_a_cancelled_sequence_ends_and_gives_its_blocks_back(world):
    worker = world.worker("u")
    world.generate(worker, max_tokens=150, turns=10)
    assert worker.used > 0
    worker.tell(Cancel("r", 1))
    world.run(2)
    made = len(worker.tokens())
    world.run(5)
    assert len(worker.tokens()) == made
    assert worker.used == 0
    assert worker.failures() == []


def test_a_cancelled_choice_ends_alone_and_its_blocks_are_back(world):
    worker = world.worker("u")
    world.generate(worker, max_tokens=60, choices=(0, 1, 2), turns=20)
    before, made = worker.used, len(worker.tokens(choice=1))
    assert 0 < made < 60
    worker.tell(Cancel("r", 1, (1,)))
    world.run(1)
    assert worker.used < before
    world.run(60)
    assert len(worker.tokens(choice=1)) == made
    for choice in (0, 2):
        assert worker.tokens(choice=choice) == world.continuation(world.prompt, 60, choice)
    assert worker.used == 0
    assert worker.failures() == []


def test_the_sequences_of_a_gateway_that_left_are_over(world):
    worker = world.worker("u")
    worker.tell(
        Generate("r", 1, world.sequence(max_tokens=150)), Generate("s", 1, world.sequence([1, 2], max_tokens=150))
    )
    world.run(8)
    worker.tell(left=(world.gateway,))
    world.run(2)
    assert worker.used == 0
    assert worker.status is not None
    assert worker.status.idle


def test_what_a_gateway_that_left_was_being_told_is_not_taken_for_short_answers(world):
    fresh, bereft = world.worker("f"), world.worker("b")
    for number in range(LEAST_ANSWERS):
        bereft.tell(Generate(f"s{number}", 1, world.sequence([1, 2], max_tokens=150)))
        world.run(4)
        bereft.tell(left=(world.gateway,))
        bereft.tell(joined=(world.gateway,))
    for worker in (fresh, bereft):
        worker.tell(Generate("r", 1, world.sequence(max_tokens=150)))
    world.run(3)
    assert bereft.tokens("s0")
    assert bereft.status.load.growth_blocks == fresh.status.load.growth_blocks > 0


def test_a_cancel_is_told_with_the_blocks_it_frees_at_once(world):
    worker = world.worker("u")
    world.generate(worker, max_tokens=150, turns=8)
    assert worker.status.load.used_blocks
    worker.tell(Cancel("r", 1))
    worker.turn()  # no time passes
    assert worker.status.load.used_blocks == 0


def test_a_gateway_is_told_what_tenants_were_served_through_others(world):
    """Each token once: of the prompt when it was computed, of the answer when it was emitted."""
    worker, other = world.worker("u"), world.gateway + 1
    worker.tell(joined=(world.gateway, other))
    world.run(1)
    wanted = msgspec.structs.replace(world.sequence(max_tokens=6), tenant="a")
    worker.tell(Generate("r", 1, wanted))
    world.run()
    assert served(worker.heard) == {}
    assert served(worker.others[other]) == {"a": (len(world.prompt), 6)}
    assert set(worker.status.totals.tokens_by_tenant) == {"a"}


def test_prompts_and_answers_count_where_they_are_computed(world):
    prefill, decode, other = world.worker("p"), world.worker("d"), world.gateway + 1
    for worker in (prefill, decode):
        worker.tell(joined=(world.gateway, other))
    world.run(1)
    world.hand_off(prefill, decode, msgspec.structs.replace(world.sequence(max_tokens=6), tenant="a"), turns=40)
    assert served(prefill.others[other]) == {"a": (len(world.prompt), 0)}
    assert served(decode.others[other]) == {"a": (0, 6)}


def test_a_gateway_that_connects_again_is_not_told_its_own_tokens(world):
    worker, again = world.worker("u"), world.gateway + 1
    worker.tell(joined=(world.gateway,))
    worker.tell(Generate("r", 1, msgspec.structs.replace(world.sequence(max_tokens=150), tenant="a")))
    world.run(8)
    worker.tell(left=(world.gateway,), joined=(again,))
    world.run(8)
    assert served(worker.others.get(again, [])) == {}


def served(frames) -> dict[str, tuple[int, int]]:
    """Tokens of prompts and answers by tenant, of all Loads together."""
    sums: dict[str, tuple[int, int]] = {}
    for load in [frame for frame in frames if isinstance(frame, Load)]:
        for tenant, service in load.served_elsewhere.items():
            prompt, output = sums.get(tenant, (0, 0))
            sums[tenant] = (prompt + service.prompt, output + service.output)
    return sums


def test_a_deadline_ends_a_sequence_with_a_typed_failure(world):
    worker = world.worker("u")
    world.generate(worker, deadline=8.0, max_tokens=150, turns=12)
    (failed,) = worker.failures()
    assert (failed.id, failed.code, failed.retry) == ("r", "deadline", False)
    assert worker.used == 0


def test_a_paused_sequence_makes_no_tokens_until_it_goes_on(world):
    worker = world.worker("u")
    world.generate(worker, max_tokens=20, turns=6)
    worker.tell(Pause("r", 1, True))
    world.run(2)
    made = len(worker.tokens())
    world.run(5)
    assert len(worker.tokens()) == made < 20
    worker.tell(Pause("r", 1, False))
    world.run(30)
    assert worker.tokens() == world.continuation(world.prompt, 20)


def test_what_cannot_be_served_is_refused_for_good_and_what_is_too_much_for_now(world):
    worker = world.worker("u")
    worker.tell(Generate("long", 1, world.sequence(list(range(300)))))
    worker.tell(*(Generate(f"r{n}", 1, world.sequence()) for n in range(20)))
    world.run(1)
    failures = {failed.id: failed for failed in worker.failures()}
    assert (failures["long"].code, failures["long"].retry) == ("invalid", False)
    overloaded = [failed for id, failed in failures.items() if id != "long"]
    assert overloaded
    assert {(failed.code, failed.retry) for failed in overloaded} == {("overloaded", True)}


def test_a_draining_worker_says_so_and_takes_nothing_new_but_finishes(world):
    worker = world.worker("u")
    world.generate(worker, turns=3)
    worker.tell(drain=True)
    worker.tell(Generate("late", 1, world.sequence()))
    world.run(1)
    assert worker.status is not None
    assert worker.status.load.draining
    assert not worker.status.idle
    assert [(failed.id, failed.code, failed.retry) for failed in worker.failures()] == [("late", "draining", True)]
    world.run()
    assert worker.tokens() == world.continuation(world.prompt, 12)
    assert worker.status.idle


def test_a_worker_that_is_recalled_takes_requests_again(world):
    worker = world.worker("u")
    worker.tell(drain=True, order=1)
    world.run(1)
    assert worker.status.load.draining
    worker.tell(Generate("r", 1, world.sequence()), drain=False, order=2)
    world.run()
    worker.tell(Generate("later", 1, world.sequence()))
    world.run()
    assert not worker.status.load.draining
    assert (worker.status.order, worker.status.load.credits > 0) == (2, True)
    assert [failed.code for failed in worker.failures()] == ["draining"], "frames come before the order beside them"
    assert worker.tokens("later") == world.continuation(world.prompt, 12)


def test_a_worker_without_a_link_refuses_hand_offs_and_nothing_else(world):
    worker = world.worker("u", link=False)
    peer = Peer("other", "e", b"other")
    worker.tell(
        Prefill("p", 1, 5, world.sequence(), peer),
        Decode("d", 1, 6, world.sequence(), peer),
        Generate("r", 1, world.sequence()),
    )
    world.run()
    assert {failed.id for failed in worker.failures()} == {"p", "d"}
    assert worker.tokens() == world.continuation(world.prompt, 12)


def test_an_unknown_sequence_cannot_be_migrated(world):
    worker = world.worker("a")
    worker.tell(Handoff("nobody", 3, 55, Peer("b", "e", b"b")))
    world.run(2)
    assert [(failed.id, failed.attempt, failed.retry) for failed in worker.failures()] == [("nobody", 3, True)]


def test_prefix_events_are_numbered_without_gaps(world):
    worker = world.worker("u")
    numbers: list[int] = []
    worker.tell(Generate("r", 1, world.sequence()))
    for _ in range(20):
        world.network.run(world.network.now + 1)
        worker.core.turn()
        for body in worker.splitter.feed(worker.end.recv(1 << 16)):
            turn = frames.decode_from_core(body)
            assert isinstance(turn, Turn)
            numbers += [msgspec.msgpack.decode(event)[2] for event in turn.events]
    assert numbers == list(range(1, len(numbers) + 1)) != []


def test_a_step_that_lasts_shows_in_the_pulse_and_waiting_does_not(world):
    worker = world.worker("u")
    beats = []

    def step(batch):
        world.network.run(world.network.now + 300)
        beats.append(worker.pulse.beat())
        return type(worker.runner).step(worker.runner, batch)

    worker.runner.step = step
    world.generate(worker, max_tokens=1, turns=4)
    assert all(beat.busy >= 300 for beat in beats)
    assert beats
    assert worker.pulse.beat().busy == 0


@pytest.mark.parametrize("at", [1, 3])
def test_a_sequence_whose_logits_are_no_numbers_fails_alone(world, at):
    worker = world.worker("u")
    step, steps = worker.runner.step, []

    def broken_step(batch):
        steps.append(batch)
        output = step(batch)
        if len(steps) < at:
            return output
        mine = [row.draws and row.draws[0].prompt_len == 2 for row in batch.rows]
        return tuple(
            (Sampled(0, None, "no numbers"),) if is_mine else row for is_mine, row in zip(mine, output, strict=True)
        )

    worker.runner.step = broken_step
    worker.tell(Generate("bad", 1, world.sequence([8, 9])), Generate("r", 1, world.sequence()))
    world.run(30)
    assert [(failed.id, failed.code, failed.retry) for failed in worker.failures()] == [("bad", "faulted", True)]
    assert worker.tokens("bad") == world.continuation([8, 9], at - 1)
    assert worker.tokens() == world.continuation(world.prompt, 12)
    assert worker.used == 0
