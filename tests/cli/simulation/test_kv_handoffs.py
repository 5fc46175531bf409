"""Hand-offs between schedulers in virtual time."""

from known_signals import spec
from simulated_service import profile, workload

from legato_cli.simulation.engine import RunSettings
from legato_cli.simulation.kv_handoffs import KVHandoffs
from legato_cli.simulation.scheduled_worker import ScheduledWorker
from legato_engine.scheduler.request import Request, RequestState
from legato_engine.transfer.virtual_time import VirtualTime
from legato_protocol.sampling_params import SamplingParams


def _worker(name, blocks):
    kind = RunSettings(spec(), workload([]), profile(kv_tokens=blocks * 16)).kind()
    return ScheduledWorker(name, "decode", 0, kind, 0.0, role="unified", max_length=4096)


def _request(id, prompt, output, attempt=1, **given):
    params = SamplingParams(max_tokens=output, seed=0)
    return Request(id, attempt, [int(id)] * prompt, prompt, params, deadline=1e9, **given)


def _step(worker, handoffs):
    worker.launch(0.0)
    result = worker.step_ended(0.0)
    handoffs.stepped(worker, result.advanced, result.prefilled)


def test_a_sequence_that_was_preempted_before_there_was_room_for_it_stays():
    """It is computed again where it was, and comes to its end there."""
    failed, arrived = [], []
    handoffs = KVHandoffs(VirtualTime(), 1e12, lambda *given: arrived.append(given), lambda worker: None)
    source, target = _worker("source", 60), _worker("target", 20)
    target.scheduler.add(_request("9", 300, 4), 0.0)
    _step(target, handoffs)
    older, newer = (_request(id, 100, 700) for id in ("1", "2"))
    source.scheduler.add(older, 0.0)
    source.scheduler.add(newer, 1.0)
    while not newer.outputs:
        _step(source, handoffs)
    here = _request("2", newer.outputs + 100, 700, attempt=2, room=handoffs.room())
    handoffs.migrate(source, newer, target, here, lambda: failed.append(True))
    handoffs.grant(target)
    while newer.state is RequestState.RUNNING:
        _step(source, handoffs)
    assert not failed
    target.scheduler.cancel("9", 1)
    handoffs.grant(target)
    assert (failed, arrived, len(handoffs)) == ([True], [], 0)
    while not source.scheduler.idle:
        _step(source, handoffs)
    assert (older.outputs, newer.outputs, target.scheduler.idle) == (700, 700, True)
    for worker in (source, target):
        worker.scheduler.check_integrity()
        assert worker.blocks.counts().used == 0
