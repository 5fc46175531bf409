"""Random schedules of a relay among scripted workers: text stays exact, books agree, and nothing is left at the end."""

import pytest
from budget import times
from relay_script import count, error_of
from relay_simulation import Simulation

from legato_gateway.errors import DeadlineExceeded, NotComputable, Overloaded, SlowClient, SuspectedPoison, WorkerFailed
from legato_gateway.relay.lifecycle import Stage

SCHEDULES = times(100)
REASONS = ("draining", "step_time")
BATCHES = 1  # mutation testing runs the first one
EXPECTED = (DeadlineExceeded, NotComputable, Overloaded, SlowClient, SuspectedPoison, WorkerFailed)


def _check(lab, run, generation, patient):
    request = generation.request
    error = error_of(generation)
    assert error is None or isinstance(error, EXPECTED), error
    assert not (patient and isinstance(error, DeadlineExceeded)), "it waited for what never came"
    assert "invalid" not in str(error), "a worker was sent another text than the client has"
    for choice in generation.choices:
        text = run.texts.get((generation, choice.index), "")
        whole = lab.text_of(request.params.seed, request.params.max_tokens, choice.index)
        ends = [whole.index(stop) for stop in request.stop if stop in whole]
        whole = whole[: min(ends)] if ends else whole
        complete = error is None and generation not in run.left
        assert text == whole if complete or choice.finish else whole.startswith(text), (choice.index, text, whole)
    if error is None and generation not in run.left:
        assert generation.unfinished == 0


def schedule(lab, seed):
    run = Simulation(seed, lab.vocabulary, lab.request)
    for _ in range(run.random.choice((40, 100))):
        run.happen()
    patient = run.settle()
    assert run.relay.active == run.relay.waiting == 0, [run.relay.sub_requests(g) for g in run.generations]
    assert run.admission.held == run.admission.held_tokens == 0
    assert not any(worker.engine.jobs for worker in run.workers.values()), "a worker still has work"
    for generation in run.generations:
        _check(lab, run, generation, generation in patient)
    return run


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens_text_is_exact_and_nothing_is_left(lab, batch):
    for seed in range(batch, SCHEDULES, BATCHES):
        try:
            schedule(lab, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_schedules_see_every_stage_and_most_endings(lab):
    """A guard of the guard: they would prove little if they all went smoothly."""
    stages, errors, migrated = set(), set(), 0
    before = {reason: count("migrations_total", reason=reason) for reason in REASONS}
    for seed in range(times(40)):
        run = Simulation(seed, lab.vocabulary, lab.request)
        for _ in range(100):
            run.happen()
            stages |= {sub.stage for generation in run.generations for sub in run.relay.sub_requests(generation)}
        run.settle()
        errors |= {type(error_of(generation)) for generation in run.generations}
        migrated += sum(report.source[0] != "p" for report in run.reports())
    assert stages == set(Stage) - {Stage.ARRIVED, Stage.ENDED}
    assert errors >= {type(None), DeadlineExceeded, SlowClient}
    assert migrated
    assert all(count("migrations_total", reason=reason) > before[reason] for reason in REASONS)
