"""Sequences that go from one core to another: prefills, migrations, and the ends of those that do not arrive."""

from itertools import pairwise
from random import Random

import pytest

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.handoff.transfers import IncomingState
from legato_engine.transfer.fakes.late_device import LateStream
from legato_protocol.wire.stream import Cancel, Decode, Handoff, HandoffReport, Pause, Prefill, Split, Tokens

layers = pytest.mark.parametrize("make_runner", ["plain", "windows"], indirect=True)


@layers
def test_a_prefilled_sequence_goes_on_elsewhere_with_exactly_its_tokens(world):
    prefill, decode = world.worker("p"), world.worker("d")
    world.hand_off(prefill, decode, world.sequence(logprobs=0), turns=60)
    assert decode.tokens() == world.continuation(world.prompt, 12)
    assert [len(item.logprobs) for item in decode.items()] == [1] * 12
    assert prefill.tokens() == []
    (report,) = decode.reports()
    # Of windows of 6 and 9 positions, the last token's block may be computed again: from positions 11 and 8 on.
    assert (report.id, report.room, report.source) == ("r", 99, "p")
    assert report.blocks == (5 + 3 + 3 if prefill.runner.layout.windows else 5)
    assert (prefill.status.totals.sent_handoffs, decode.status.totals.received_handoffs) == (1, 1)
    world.check_done()


def test_the_first_token_may_be_the_last_and_choices_travel_together(world):
    prefill, decode = world.worker("p"), world.worker("d")
    world.hand_off(prefill, decode, world.sequence(max_tokens=1), turns=20)
    assert decode.tokens() == world.continuation(world.prompt, 1)
    assert decode.finished()
    kinds = [type(frame) for frame in decode.heard]
    assert kinds.index(HandoffReport) < kinds.index(Tokens), "its gateway forgets it with its last token"
    world.hand_off(prefill, decode, world.sequence(choices=(0, 1)), room=100, attempt=2, turns=60)
    for choice in (0, 1):
        assert decode.tokens(attempt=2, choice=choice) == world.continuation(world.prompt, 12, choice)
    assert decode.items(attempt=2)[0].cached_tokens > 0
    assert [(report.blocks, report.cached_blocks) for report in decode.reports()] == [(5, 0), (0, 5)]


@layers
@pytest.mark.parametrize(("old", "new"), [((20, 1, 3.0), None), (None, (20, 1, 3.0)), ((20, 1, 3.0), (20, 1, 3.0))])
def test_sequences_go_through_slots_where_links_do_not_reach_an_arena(world, old, new):
    """From prefill to decode and back, with slots that hold one of the three sequences at a time."""
    prefill, decode = world.worker("p", chunk=4, staged=old), world.worker("d", staged=new)
    for room in range(3):
        world.hand_off(prefill, decode, world.sequence(max_tokens=20), room=room, id=str(room))
    while not (known := decode.tokens("0")):
        world.run(1)
    decode.send(Handoff("0", 2, 50, prefill.peer))
    prefill.send(Decode("0", 2, 50, world.known(known, max_tokens=20), decode.peer))
    world.run(120)
    first = known + prefill.tokens("0", attempt=2)
    assert [first, decode.tokens("1"), decode.tokens("2")] == [world.continuation(world.prompt, 20)] * 3
    world.check_done()


@layers
def test_hand_offs_from_and_to_workers_whose_host_keeps_evicted_blocks(world, make_runner):
    """The last sequence is the first one again, which both workers have evicted and restore."""
    keeping = type("Keeping", (make_runner,), {"host_slots": 60})
    blocks = 9 * (1 + len(make_runner.layout.windows))
    prefill, decode = (world.worker(name, runner=keeping(), blocks=blocks) for name in "pd")
    prompts = [[token + shift for token in world.prompt] for shift in (0, 100, 200, 300, 0)]
    for room, prompt in enumerate(prompts):
        world.hand_off(prefill, decode, world.sequence(prompt), room=room, id=str(room), turns=60)
        assert decode.tokens(str(room)) == world.continuation(prompt, 12)
    for worker in (prefill, decode):
        host = worker.status.totals.tiers["host"]
        assert host.restored > 0
        assert host.restore_seconds > 0
        assert worker.status.load.restore_seconds[0] > 0
    assert decode.reports()[-1].cached_blocks >= 5
    world.check_done()


@layers
@pytest.mark.parametrize("paused", [False, True])
def test_a_running_sequence_migrates_and_every_token_is_made_once(world, paused):
    """Also while it is paused and nothing is computed."""
    old, new = world.worker("a"), world.worker("b")
    world.generate(old, max_tokens=40, logprobs=0, turns=10)
    old.send(Pause("r", 1, paused))
    world.run(2)
    sent = old.tokens()
    assert 0 < len(sent) < 40
    old.send(drain=True)
    world.migrate(old, new, world.known(sent, max_tokens=40, logprobs=0))
    world.run(60)
    truth, before = world.continuation(world.prompt, 40), old.tokens(attempt=1)
    assert new.items(attempt=2)[0].index == len(sent)
    assert [*sent, *new.tokens(attempt=2)] == truth
    assert before == truth[: len(before)]
    assert all(len(item.logprobs) == len(item.token_ids) for item in new.items(attempt=2))
    assert not old.finished(attempt=1)
    assert len(new.reports()) == 1
    world.check_done()


def test_a_migration_that_repeats_many_tokens_loses_the_logprobs_of_the_oldest_alone(world):
    """And the sequence migrates on from there, though its logprobs are not known from the begin."""
    old, new, last = world.worker("a"), world.worker("b"), world.worker("c")
    params = {"max_tokens": 140, "logprobs": 0}
    world.generate(old, **params, turns=102)
    sent = old.tokens()
    assert len(sent) > 90
    world.migrate(old, new, world.known(sent[:5], **params))
    while not new.items(attempt=2):
        world.run(1)
    items = new.items(attempt=2)
    assert (items[0].index, items[0].logprobs) == (5, ())
    assert sum(len(item.token_ids) for item in items if item.logprobs) >= 64
    world.migrate(new, last, world.known([*sent[:5], *new.tokens(attempt=2)], **params), room=56, attempt=3)
    world.run(60)
    told = [*sent[:5], *new.tokens(attempt=2)]
    assert told == world.continuation(world.prompt, 140)[: len(told)]
    assert all(len(item.logprobs) == len(item.token_ids) for item in last.items(attempt=3))
    assert last.finished(attempt=3)
    world.check_done()


def sending(world, worker):
    """Sequences of `r` here whose receiver has granted them room."""
    return [request for request in worker.scheduler.requests(f"{world.gateway}/r") if request.sending]


def split_and_migrate(world, old, new, migrating, **params):
    """Choices 0 to 2 of `r` run at `old`: all are split, `migrating` of them migrate; what each had sent by then."""
    sent = {choice: old.tokens(choice=choice) for choice in range(3)}
    old.send(Split("r", 1, {choice: f"r/{choice}" for choice in range(3)}))
    for choice in migrating:
        known = world.known(sent[choice], choices=(choice,), **params)
        old.send(Handoff(f"r/{choice}", 2, 50 + choice, new.peer))
        new.send(Decode(f"r/{choice}", 2, 50 + choice, known, old.peer))
    return sent


@layers
@pytest.mark.parametrize("turns", [7, 8, 9, 12])
@pytest.mark.parametrize("migrating", [(0, 1, 2), (1,)])
def test_choices_migrate_alone_and_every_token_is_made_once(world, turns, migrating):
    old, new = world.worker("a"), world.worker("b")
    world.generate(old, max_tokens=40, choices=(0, 1, 2), logprobs=0, turns=turns)
    sent = split_and_migrate(world, old, new, migrating, max_tokens=40, logprobs=0)
    assert all(0 < len(tokens) < 40 for tokens in sent.values())
    world.run(80)
    for choice in range(3):
        truth = world.continuation(world.prompt, 40, choice)
        here = [*sent[choice], *old.tokens(id=f"r/{choice}", choice=choice)]
        if choice in migrating:
            assert [*sent[choice], *new.tokens(id=f"r/{choice}", attempt=2, choice=choice)] == truth
            assert here == truth[: len(here)]
            assert len(here) < 40
        else:
            assert here == truth
    assert len(new.reports()) == len(migrating)
    world.check_done()


def test_a_choice_that_is_cancelled_while_it_migrates_takes_no_other_with_it(world):
    old, new = world.worker("a"), world.worker("b")
    world.generate(old, max_tokens=40, choices=(0, 1, 2), turns=9)
    sent = split_and_migrate(world, old, new, (0, 1, 2), max_tokens=40)
    world.run(1)
    old.send(Cancel("r/1", 2))
    new.send(Cancel("r/1", 2))
    world.run(80)
    for choice in (0, 2):
        after = new.tokens(id=f"r/{choice}", attempt=2, choice=choice)
        assert [*sent[choice], *after] == world.continuation(world.prompt, 40, choice)
    assert not new.finished(id="r/1", attempt=2, choice=1)
    world.check_done()


def test_what_is_one_sequence_still_or_of_another_attempt_is_not_split(world):
    worker = world.worker("u", chunk=4)
    world.generate(worker, choices=(0, 1), turns=2)
    worker.send(Split("r", 1, {0: "r/0", 1: "r/1"}), Split("nobody", 1, {0: "r/0"}))
    world.run(7)
    assert worker.tokens()
    worker.send(Split("r", 2, {0: "r/0"}))
    world.run(33)
    for choice in (0, 1):
        assert worker.tokens(choice=choice) == world.continuation(world.prompt, 12, choice)


@pytest.mark.parametrize("granted", [True, False])
def test_a_sequence_that_cannot_migrate_goes_on_under_its_old_attempt(world, granted):
    old, new = world.worker("a"), world.worker("b")
    world.generate(old, max_tokens=40, turns=10)
    world.migrate(old, new, world.known(old.tokens(), max_tokens=40))
    while granted and not sending(world, old):
        world.run(1)
    new.send(Cancel("r", 2))
    world.run(60)
    assert old.tokens(attempt=1) == world.continuation(world.prompt, 40)
    assert [(failed.attempt, failed.code) for failed in old.failures()] == [(2, "transfer")] * granted
    assert old.used == new.used == 0
    assert old.status.idle


@pytest.mark.parametrize(
    "other", [[*range(10, 29), 99], list(range(10, 29)), [1, 2]], ids=["differs", "short", "foreign"]
)
def test_a_sequence_that_is_not_the_one_asked_for_is_refused(world, other):
    prefill, decode = world.worker("p"), world.worker("d")
    world.generate(decode, id="warm", turns=20)
    decode.send(Decode("r", 1, 99, world.sequence(), prefill.peer))
    prefill.send(Prefill("r", 1, 99, world.sequence(other), decode.peer))
    world.run(20)
    assert decode.items() == []
    (failed,) = decode.failures()
    assert (failed.code, failed.retry) == ("transfer", True)
    assert prefill.used == decode.used == 0


def test_blocks_that_running_sequences_need_come_back_and_the_hand_off_goes_on_later(world):
    """The prefill is held up by another, so nothing is written yet when the decode worker runs out of blocks."""
    prefill, decode = world.worker("p", chunk=4), world.worker("d", blocks=14, growth_tokens=4)
    world.generate(prefill, [5] * 180, id="other", max_tokens=1, turns=0)
    world.generate(decode, [1, 2, 3], id="long", max_tokens=50, turns=3)
    world.hand_off(prefill, decode, world.sequence())
    granted = []
    for _ in range(150):
        world.run(1)
        granted += [request.sending for request in prefill.scheduler.requests(f"{world.gateway}/r")]
    assert [now for before, now in pairwise(granted) if before != now] == [True, False, True]
    assert decode.tokens("long") == world.continuation([1, 2, 3], 50)
    assert decode.tokens() == world.continuation(world.prompt, 12)
    world.check_done()


@layers
@pytest.mark.parametrize(
    ("phase", "lost", "codes"),
    [
        (IncomingState.PENDING, "p", ["peer_lost"]),
        (IncomingState.GRANTED, "p", ["peer_lost"]),
        (IncomingState.WRITING, "p", ["peer_lost"]),
        (IncomingState.ADOPTED, "p", []),
        (IncomingState.WRITING, "d", ["peer_lost"]),
    ],
)
def test_a_worker_whose_peer_died_says_so(world, phase, lost, codes):
    prefill, decode = world.worker("p", chunk=4), world.worker("d", blocks=40)
    if phase is IncomingState.PENDING:
        world.generate(decode, [5] * 80, id="other", turns=2)
    world.hand_off(prefill, decode, world.sequence([3] * 100))
    while not (decode.reports() or any(transfer.state is phase for transfer in decode.scheduler.incoming)):
        world.run(1)
    gone, left = (prefill, decode) if lost == "p" else (decode, prefill)
    world.workers.remove(gone)
    gone.agent.close()
    world.run(40)
    assert [(failed.id, failed.code, failed.retry) for failed in left.failures()] == [
        ("r", code, True) for code in codes
    ]
    assert left.status.totals.failed_handoffs == len(codes)
    assert left.finished() is (codes == [])
    assert left.used == 0


@layers
def test_a_sequence_goes_on_while_its_blocks_travel_and_its_pause_is_reported(world):
    """Blocks take up to 4 seconds, a step takes one: it decodes on until the grant's room is used up."""
    old, new = world.worker("a"), world.worker("b")
    world.generate(old, max_tokens=150, turns=12)
    known = old.tokens()
    world.migrate(old, new, world.known(known, max_tokens=150))
    world.run(4)
    world.network.faults.delay = 4.0
    decoding = 0
    while not new.reports():
        world.run(1)
        decoding += sum(not request.outgoing.stopped for request in sending(world, old))
    assert decoding >= 2
    (report,) = new.reports()
    assert 0 < report.boundary < report.seconds
    world.run(170)
    assert [*known, *new.tokens(attempt=2)] == world.continuation(world.prompt, 150)
    world.check_done()


def test_a_prefill_whose_logits_are_not_finite_ends_on_both_sides(world):
    prefill, decode = world.worker("p"), world.worker("d")
    step = prefill.runner.step
    prefill.runner.step = lambda batch: tuple(tuple(Sampled(0, None, "nan") for _ in row) for row in step(batch))
    world.hand_off(prefill, decode, world.sequence(), turns=20)
    assert [failed.code for failed in prefill.failures()] == ["faulted"]
    assert prefill.used == decode.used == 0
    assert prefill.status.idle


def test_what_ends_after_its_migration_failed_ends_no_other_in_the_same_room(world):
    old, new = world.worker("a"), world.worker("b")
    world.generate(old, max_tokens=60, turns=0)
    world.generate(old, id="s", max_tokens=60, turns=12)
    world.migrate(old, new, world.known(old.tokens("r"), max_tokens=60))
    while not sending(world, old):
        world.run(1)
    new.send(Cancel("r", 2))
    world.run(6)
    known = old.tokens("s")
    old.send(Handoff("s", 3, 55, new.peer))
    world.run(1)
    old.send(Cancel("r", 1))
    new.send(Decode("s", 3, 55, world.known(known, max_tokens=60), old.peer))
    world.run(80)
    assert [*known, *new.tokens("s", attempt=3)] == world.continuation(world.prompt, 60)
    assert new.failures() == []
    assert old.used == new.used == 0


def test_chunks_without_draws_are_handed_off_once_the_device_has_written_them(world, make_token_runner):
    """Their steps return at once; only one that samples waits for the device."""

    class LateRunner(make_token_runner):
        def __init__(self, stream):
            super().__init__()
            self.stream = stream
            self.early = 0  # steps that returned before their KV was written

        def step(self, batch):
            output = []
            self.written = self.stream.begin(lambda: output.append(super(LateRunner, self).step(batch)))
            if not any(row.draws for row in batch.rows):
                self.early += 1
                return tuple(() for _ in batch.rows)
            self.stream.synchronize()
            return output[0]

    runner = LateRunner(LateStream(world.network, Random(1), 6.0))
    prefill, decode = world.worker("p", chunk=4, runner=runner), world.worker("d")
    world.hand_off(prefill, decode, world.sequence(), turns=80)
    assert runner.early >= 4
    assert decode.tokens() == world.continuation(world.prompt, 12)
    world.check_done()
