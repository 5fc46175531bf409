"""Sequences that hot workers hand on, in virtual time: which, when, and what their clients read."""

from dataclasses import replace as dataclass_replace
from typing import Any

import pytest
from msgspec.structs import replace
from relay_script import Scripted, count
from relay_simulation import COST, SimulatedWorker

from legato_gateway.relay.hot_workers import HotWorkers
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.rebalancing import RebalancingPolicy
from legato_gateway.testing.fake_engine import Refusal
from legato_protocol.stream import Handoff

# Steps with three sequences take 0.07 s.
POLICY = RebalancingPolicy(0.06, look=0.05, patience=0.2, jitter=0.1, rest=1.0, settled=1.0)


def _run(lab: Any, *roles: str, policy: RebalancingPolicy | None = POLICY) -> Scripted:
    return Scripted(lab, *(roles or ("u", "u")), rebalancing=policy)


def _heat(run: Scripted, **request: Any) -> tuple[Any, SimulatedWorker, SimulatedWorker]:
    """A request, the worker that decodes it beside four sequences of other gateways, and an idle one."""
    generation = run.start(**request)
    source = run.decoding(generation)
    source.others = 4
    return generation, source, run.others(source)[-1]


def _place(run: Scripted, generation: Any) -> str:
    return run.sub(generation).place.decode


@pytest.mark.parametrize("roles", [("u", "u"), ("p", "d", "d")])
def test_a_hot_worker_hands_a_sequence_on_and_its_client_reads_on(lab, roles):
    run = _run(lab, *roles)
    before = count("migrations_total", reason="step_time")
    generation, source, target = _heat(run, max_tokens=150)
    run.until(lambda: _place(run, generation) != source.name)
    assert _place(run, generation) == target.name
    run.until(lambda: generation.ended)
    assert run.texts[generation, 0] == lab.text_of(7, 150)
    assert [name for name, _ in run.told(Handoff)] == [source.name], "and the target is not hot"
    assert count("migrations_total", reason="step_time") == before + 1
    assert not source.engine.jobs


def test_blocks_that_sequences_there_wait_for_are_known(lab):
    run = _run(lab)
    run.relay.workers.received("u0", replace(run.workers["u0"].load(), pending_blocks=9))
    assert run.view("u0").asked_blocks == 9


def test_it_has_to_be_hot_for_a_while(lab):
    run = _run(lab)
    _, source, _ = _heat(run)
    for others in (4, 0) * 5:
        source.others = others
        run.run(19)
    assert not run.told(Handoff)
    source.others = 4
    run.run(35)
    assert run.told(Handoff)


def test_after_a_failed_move_a_sequence_stays_and_its_client_reads_on(lab):
    run = _run(lab)
    generation, source, target = _heat(run, max_tokens=400)
    target.engine.refusals.append(Refusal("transfer", retry=True))
    run.until(lambda: run.told(Handoff))
    run.until(lambda: run.sub(generation).stage is Stage.DECODING)
    run.until(lambda: len(generation.choices[0].tokens) > 200)
    run.until(lambda: generation.ended)
    assert run.texts[generation, 0] == lab.text_of(7, 400)
    assert generation.route.workers == [source.name]
    assert len(run.told(Handoff)) == 1, "it is not tried again"


def _both_at_one(run: Scripted) -> tuple[SimulatedWorker, SimulatedWorker]:
    """A worker with two sequences that becomes hot, and an idle one."""
    source, target = run.workers.values()
    run.cut(target)
    for _ in range(2):
        run.decoding(run.start())
    run.connect()
    source.others = 4
    return source, target


def test_after_a_failed_move_its_worker_rests(lab):
    run = _run(lab)
    _, target = _both_at_one(run)
    target.engine.refusals.append(Refusal("transfer", retry=True))
    run.until(lambda: run.told(Handoff))
    run.run(95)
    assert len(run.told(Handoff)) == 1
    run.run(10)
    assert len({frame.id for _, frame in run.told(Handoff)}) == 2


def test_a_worker_hands_on_one_at_a_time(lab):
    run = _run(lab)
    _, target = _both_at_one(run)
    target.engine.hold("receiving")
    run.until(lambda: run.told(Handoff))
    run.run(300)  # far longer than it would rest
    assert len(run.told(Handoff)) == 1
    target.engine.release()
    run.run(15)
    assert len(run.told(Handoff)) == 1, "the loads have to tell of it"
    run.run(30)
    assert len(run.told(Handoff)) == 2


def test_after_a_move_its_worker_does_not_rest(lab):
    run = _run(lab)
    _both_at_one(run)
    run.until(lambda: run.told(Handoff))
    run.run(60)
    assert len(run.told(Handoff)) == 2


def test_a_move_whose_sequence_ends_meanwhile_has_not_failed(lab):
    run = _run(lab)
    _, target = _both_at_one(run)
    target.engine.hold("receiving")
    run.until(lambda: run.told(Handoff))
    (moving,) = [frame.id for _, frame in run.told(Handoff)]
    run.relay.leave(next(each for each in run.generations if run.sub(each).id == moving))
    run.run(40)
    assert len(run.told(Handoff)) == 2, "the next one goes without a rest"


def test_where_all_are_hot_nobody_is_asked_to_hand_on(lab):
    view = WorkerView("d0", "decode", "e", "r", 16, 1000, 8000, True, running=9, free_blocks=900, decode_cost=COST)
    others = {
        "hot": view,
        "leaving": dataclass_replace(view, running=0, draining=True),
        "idle": dataclass_replace(view, running=0),
    }
    for name, other in others.items():
        hot = HotWorkers(dataclass_replace(POLICY, patience=0.0, jitter=0.0), lambda: 0.0)
        fleet = FleetSnapshot((view, dataclass_replace(other, name="d1")))
        assert [each.worker.name for each in hot.due(fleet, 1.0)] == (["d0"] if name == "idle" else [])


def test_gateways_that_see_the_same_act_at_different_times(lab):
    """And look at the fleet now and then."""
    view = WorkerView("d0", "decode", "e", "r", 16, 1000, 8000, running=9, free_blocks=900, decode_cost=COST)
    idle = dataclass_replace(view, name="d1", running=0)
    fleet, policy = FleetSnapshot((view, idle)), dataclass_replace(POLICY, look=0.1, patience=1.0, jitter=2.0)
    for drawn, due in ((0.0, 1.0), (0.5, 2.0)):
        hot = HotWorkers(policy, lambda drawn=drawn: drawn)
        assert not hot.due(fleet, 0.0)
        assert not hot.due(fleet, due - 0.05)
        assert not hot.due(fleet, due), "it has just looked"
        assert hot.due(fleet, due + 0.06)


def test_a_sequence_that_moved_stays_for_a_while(lab):
    run = _run(lab)
    generation, source, target = _heat(run)
    run.until(lambda: _place(run, generation) == target.name)
    source.others, target.others = 0, 4
    run.run(95)
    assert len(run.told(Handoff)) == 1
    run.run(40)
    assert _place(run, generation) == source.name


def test_the_shortest_goes_first(lab):
    run = _run(lab)
    source, target = run.workers.values()
    run.cut(target)
    short = [run.start(prompt=tuple(range(length))) for length in (80, 40, 60)][1]
    run.until(lambda: all(sub.stage is Stage.DECODING for g in run.generations for sub in run.relay.sub_requests(g)))
    run.connect()
    source.others = 4
    run.until(lambda: run.told(Handoff))
    assert [frame.id for _, frame in run.told(Handoff)] == [run.sub(short).id]


def _full(run, source):
    source.others, source.other_blocks = 1, 990


@pytest.mark.parametrize(("happens", "reason"), [(_full, "kv_cache"), (Scripted.drain, "draining")])
def test_so_does_one_whose_arena_is_full_and_one_that_drains(lab, happens, reason):
    run = _run(lab)
    before = count("migrations_total", reason=reason)
    generation, source, target = _heat(run)
    happens(run, source)
    run.until(lambda: _place(run, generation) == target.name)
    assert count("migrations_total", reason=reason) == before + 1


def _not_read(run, generation, source, target):
    source.others = 0
    run.generations.remove(generation)
    run.run(20)
    assert generation.paused
    source.others = 4
    source.engine.jobs[next(iter(source.engine.jobs))].paused = False


def _at(**changes):
    """The target is another worker, and the source has RDMA."""

    def greet(run, generation, source, target):
        run.greet(source.name, transport="ucx:rdma")
        run.greet(target.name, **{"transport": "ucx:rdma"} | changes)

    return greet


def _also_hot(run, generation, source, target):
    target.others = 2


def _without_tokens(run, generation, source, target):
    """It may be preempted, and what does not run cannot move."""
    source.engine.hold("decoding")


def _nothing(run, generation, source, target):
    pass


@pytest.mark.parametrize(
    ("happens", "request_", "policy"),
    [
        pytest.param(_nothing, {}, None, id="there is no policy"),
        pytest.param(_nothing, {"max_tokens": 65}, POLICY, id="it is soon over"),
        pytest.param(_nothing, {"choices": 2}, POLICY, id="it has two choices"),
        pytest.param(_not_read, {}, POLICY, id="its client does not read"),
        pytest.param(_without_tokens, {}, POLICY, id="it gets no tokens"),
        pytest.param(_at(kv_revision="other"), {}, POLICY, id="the other one has another KV revision"),
        pytest.param(_at(address=b""), {}, POLICY, id="the other one has no link"),
        pytest.param(_at(transport="ucx:tcp"), {}, POLICY, id="the other one is of another network"),
        pytest.param(_also_hot, {}, POLICY, id="the other one is hot too"),
    ],
)
def test_a_sequence_stays_where(lab, happens, request_, policy):
    run = _run(lab, policy=policy)
    generation, source, target = _heat(run, **request_)
    happens(run, generation, source, target)
    run.run(60)
    assert not run.told(Handoff)
    if happens is _without_tokens:
        source.engine.release()
        run.run(10)
        assert run.told(Handoff)
