"""Sequences that hot workers hand on, in virtual time: which, when, and what their clients read."""

from dataclasses import replace as dataclass_replace

import pytest
from relay_script import Scripted, count
from relay_simulation import COST

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.rebalancing import HotWorkers, RebalancingPolicy
from legato_gateway.testing.fake_engine import ScriptedRefusal
from legato_protocol.wire.stream import Handoff

# Steps with three sequences take 0.07 s.
POLICY = RebalancingPolicy(0.06, interval=0.05, patience=0.2, jitter=0.1, failure_pause=1.0, settle_time=1.0)


def _heated(lab, *roles, policy=POLICY, refuses=False, **request):
    """A request, the worker that decodes it alongside four sequences of other gateways, and an idle one."""
    run = Scripted(lab, *(roles or ("u", "u")), rebalancing=policy)
    generation = run.start(**request)
    source = run.decoding(generation)
    source.others = 4
    target = run.others(source)[-1]
    if refuses:
        target.engine.refusals.append(ScriptedRefusal("transfer", retry=True))
    return run, generation, source, target


def _until_moved(run, generation, source):
    run.until(lambda: run.sub(generation).place.decode != source.name)


@pytest.mark.parametrize("roles", [("u", "u"), ("p", "d", "d")])
def test_a_hot_worker_hands_a_sequence_on_and_its_client_reads_on(lab, roles):
    before = count("migrations_total", reason="step_time")
    run, generation, source, target = _heated(lab, *roles, max_tokens=150)
    _until_moved(run, generation, source)
    assert run.sub(generation).place.decode == target.name
    assert run.end(generation) is None
    assert run.texts[generation, 0] == lab.text_of(7, 150)
    assert [name for name, _ in run.frames(Handoff)] == [source.name], "and the target is not hot"
    assert count("migrations_total", reason="step_time") == before + 1
    assert not source.engine.jobs


def test_it_has_to_be_hot_for_a_while(lab):
    run, _, source, _ = _heated(lab)
    for others in (4, 0) * 5:
        source.others = others
        run.run(19)
    assert not run.frames(Handoff)
    source.others = 4
    run.run(35)
    assert run.frames(Handoff)


def test_after_a_failed_move_a_sequence_stays_and_its_client_reads_on(lab):
    run, generation, source, _ = _heated(lab, refuses=True, max_tokens=400)
    run.until(lambda: run.frames(Handoff))
    run.until(lambda: run.sub(generation).stage is Stage.DECODING)
    run.until(lambda: len(generation.choices[0].tokens) > 200)
    assert run.end(generation) is None
    assert run.texts[generation, 0] == lab.text_of(7, 400)
    assert generation.route.workers == [source.name]
    assert len(run.frames(Handoff)) == 1, "it is not tried again"


def _both_at_one(lab):
    """A worker with two sequences that becomes hot, and an idle one."""
    run = Scripted(lab, "u", "u", rebalancing=POLICY)
    source, target = run.workers.values()
    run.cut(target)
    for _ in range(2):
        run.decoding(run.start())
    run.connect()
    source.others = 4
    return run, target


def _moves_after(run, *steps):
    """Counts the sequences that have moved after each of these numbers of further steps."""
    moves = []
    for more in steps:
        run.run(more)
        moves.append(len({frame.id for _, frame in run.frames(Handoff)}))
    return moves


def test_after_a_failed_move_its_worker_rests_and_after_one_that_succeeds_it_does_not(lab):
    run, target = _both_at_one(lab)
    target.engine.refusals.append(ScriptedRefusal("transfer", retry=True))
    run.until(lambda: run.frames(Handoff))
    assert _moves_after(run, 95, 10) == [1, 2]
    assert len(run.frames(Handoff)) == 2
    run, _ = _both_at_one(lab)
    run.until(lambda: run.frames(Handoff))
    assert _moves_after(run, 60) == [2]


def test_a_worker_hands_on_one_at_a_time(lab):
    run, target = _both_at_one(lab)
    target.engine.hold("receiving")
    run.until(lambda: run.frames(Handoff))
    assert _moves_after(run, 300) == [1], "far longer than it would rest"
    target.engine.release()
    assert _moves_after(run, 15, 30) == [1, 2], "the loads have to report it"


def test_a_move_whose_sequence_ends_meanwhile_has_not_failed(lab):
    run, target = _both_at_one(lab)
    target.engine.hold("receiving")
    run.until(lambda: run.frames(Handoff))
    ((_, moving),) = run.frames(Handoff)
    run.relay.leave(next(each for each in run.generations if run.sub(each).id == moving.id))
    assert _moves_after(run, 40) == [2], "the next one goes without a rest"


HOT = WorkerView("d0", "decode", "e", "r", 16, 1000, 8000, True, running=9, free_blocks=900, decode_cost=COST)
IDLE = dataclass_replace(HOT, name="d1", running=0)


@pytest.mark.parametrize(
    ("other", "due"),
    [(dataclass_replace(HOT, name="d1"), []), (dataclass_replace(IDLE, draining=True), []), (IDLE, ["d0"])],
    ids=["hot", "leaving", "idle"],
)
def test_where_all_are_hot_no_worker_hands_on(other, due):
    hot = HotWorkers(dataclass_replace(POLICY, patience=0.0, jitter=0.0), lambda: 0.0)
    assert [each.worker.name for each in hot.due(FleetSnapshot((HOT, other)), 1.0)] == due


@pytest.mark.parametrize(("drawn", "due"), [(0.0, 1.0), (0.5, 2.0)])
def test_gateways_that_see_the_same_act_at_different_times(drawn, due):
    fleet, policy = FleetSnapshot((HOT, IDLE)), dataclass_replace(POLICY, interval=0.1, patience=1.0, jitter=2.0)
    hot = HotWorkers(policy, lambda: drawn)
    passes = [bool(hot.due(fleet, now)) for now in (0.0, due - 0.05, due, due + 0.06)]
    assert passes == [False, False, False, True], "it has just polled when it is due"


def test_a_sequence_that_moved_stays_for_a_while(lab):
    run, generation, source, target = _heated(lab)
    _until_moved(run, generation, source)
    source.others, target.others = 0, 4
    run.run(95)
    assert len(run.frames(Handoff)) == 1
    run.run(40)
    assert run.sub(generation).place.decode == source.name


def test_the_shortest_goes_first(lab):
    run = Scripted(lab, "u", "u", rebalancing=POLICY)
    source, target = run.workers.values()
    run.cut(target)
    _, short, _ = generations = [run.start(prompt=tuple(range(length))) for length in (80, 40, 60)]
    for generation in generations:
        run.decoding(generation)
    run.connect()
    source.others = 4
    run.until(lambda: run.frames(Handoff))
    assert [frame.id for _, frame in run.frames(Handoff)] == [run.sub(short).id]


def _full(run, source):
    source.others, source.other_blocks = 1, 990


@pytest.mark.parametrize(("happens", "reason"), [(_full, "kv_cache"), (Scripted.drain, "draining")])
def test_so_does_one_whose_arena_is_full_and_one_that_drains(lab, happens, reason):
    before = count("migrations_total", reason=reason)
    run, generation, source, _ = _heated(lab)
    happens(run, source)
    _until_moved(run, generation, source)
    assert count("migrations_total", reason=reason) == before + 1


def _not_read(run, generation, source, target):
    source.others = 0
    run.generations.remove(generation)
    run.run(20)
    assert generation.paused
    source.others = 4
    source.engine.jobs[next(iter(source.engine.jobs))].paused = False


def _also_hot(run, generation, source, target):
    target.others = 2


def _without_tokens(run, generation, source, target):
    """It may be preempted, and what does not run cannot move."""
    source.engine.hold("decoding")


@pytest.mark.parametrize(
    ("happens", "request_"),
    [
        pytest.param(None, {"policy": None}, id="there is no policy"),
        pytest.param(None, {"max_tokens": 65}, id="it is soon over"),
        pytest.param(None, {"choices": 2}, id="it has two choices"),
        pytest.param(_not_read, {}, id="its client does not read"),
        pytest.param(_without_tokens, {}, id="it gets no tokens"),
        pytest.param(_also_hot, {}, id="the other one is hot too"),
    ],
)
def test_a_sequence_stays_where(lab, happens, request_):
    run, generation, source, target = _heated(lab, **request_)
    if happens:
        happens(run, generation, source, target)
    run.run(60)
    assert not run.frames(Handoff)
    if happens is _without_tokens:
        source.engine.release()
        run.run(10)
        assert run.frames(Handoff)
