"""What workers tell becomes what the autoscaler decides from."""

import asyncio
import dataclasses

from legato_operator.api import parsing
from legato_operator.observing.observed import Observed, Pod, ReportedLoad, WorkerState
from legato_operator.observing.signal_source import WorkerSignalSource

LOAD = ReportedLoad("epoch", 0, 0, 0, 90, 5, 5, 0, prefill_rate=8000.0, step_time=0.01, prompt_tokens=0)


def _pod(name="demo-prefill-0", pool="prefill", **load):
    state = WorkerState(0, False, "tcp", dataclasses.replace(LOAD, **load))
    return Pod(name, f"uid-{name}", pool, "r", "0", True, False, state=state, age=100.0, start_seconds=7.0)


def _signals(source, build, now, *pods):
    service = parsing.read_service(build())
    observed = Observed(service, "uid", 1, {}, False, (), pods, True, now, "")
    return asyncio.run(source.signals(observed))


def _tokens(lengths):
    return sum(bucket.tokens for bucket in lengths)


def test_what_arrived_is_what_was_computed_and_what_queues_grew_by(build):
    source = WorkerSignalSource()
    first = _signals(source, build, 0.0, _pod(prompt_tokens=5000)).traffic
    second = _signals(source, build, 2.0, _pod(prompt_tokens=5400, queue_tokens=600)).traffic
    assert (_tokens(first.arrivals), _tokens(second.arrivals), _tokens(second.recent)) == (0, 1000, 1000)
    assert second.seconds == 10.0


def test_a_queue_that_is_worked_off_is_no_arrival(build):
    source = WorkerSignalSource()
    _signals(source, build, 0.0, _pod(queue_tokens=600))
    assert _tokens(_signals(source, build, 2.0, _pod(prompt_tokens=600)).traffic.arrivals) == 0


def test_arrivals_are_forgotten_after_a_minute_and_recent_ones_sooner(build):
    source = WorkerSignalSource()
    _signals(source, build, 0.0, _pod())
    _signals(source, build, 2.0, _pod(prompt_tokens=1000))
    later = _signals(source, build, 20.0, _pod(prompt_tokens=1000)).traffic
    assert (_tokens(later.arrivals), _tokens(later.recent)) == (1000, 0)
    assert _tokens(_signals(source, build, 63.0, _pod(prompt_tokens=1000)).traffic.arrivals) == 0


def test_a_core_that_began_anew_has_computed_nothing_of_it_twice(build):
    source = WorkerSignalSource()
    _signals(source, build, 0.0, _pod(prompt_tokens=9000))
    again = _signals(source, build, 2.0, _pod(prompt_tokens=400, epoch="next")).traffic
    assert _tokens(again.arrivals) == 0


def test_prompts_count_where_prefill_has_its_own_pool(build):
    source = WorkerSignalSource()
    decode = "demo-decode-0"
    _signals(source, build, 0.0, _pod(), _pod(decode, "decode"))
    made = _signals(source, build, 2.0, _pod(), _pod(decode, "decode", prompt_tokens=500))
    assert _tokens(made.traffic.arrivals) == 0


def test_a_worker_that_did_not_answer_is_there_and_nothing_is_known_of_it(build):
    silent = dataclasses.replace(_pod(), state=None)
    (worker,) = _signals(WorkerSignalSource(), build, 0.0, silent).workers
    assert (worker.ready, worker.sample_age, worker.queue_tokens, worker.blocks) == (True, None, None, None)


def test_gateways_are_no_workers_and_those_that_leave_are_draining(build):
    gateway = _pod("demo-gateway-0", "gateway")
    leaving = dataclasses.replace(_pod(), leaving=True)
    (worker,) = _signals(WorkerSignalSource(), build, 0.0, gateway, leaving).workers
    assert (worker.name, worker.draining, worker.start_seconds) == ("demo-prefill-0", True, 7.0)
    assert worker.blocks.total == 100
    assert worker.prefill_cost.seconds(8000) == 1.0
