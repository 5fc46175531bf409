"""Random schedules of a relay among scripted workers: text stays exact, books agree, and nothing is left at the end."""

from budget import times
from relay_script import count, error_of
from relay_simulation import Simulation

from legato_gateway.errors import DeadlineExceeded, NotComputable, Overloaded, SlowClient, SuspectedPoison, WorkerFailed
from legato_gateway.relay.lifecycle import Stage

EXPECTED = (DeadlineExceeded, NotComputable, Overloaded, SlowClient, SuspectedPoison, WorkerFailed)


def _check(lab, run, generation, patient):
    """Checks the text of a request; returns its error."""
    request, error = generation.request, error_of(generation)
    assert error is None or isinstance(error, EXPECTED), error
    assert not (patient and isinstance(error, DeadlineExceeded)), "it waited for what never came"
    assert "invalid" not in str(error), "a worker was sent another text than the client has"
    complete = error is None and generation not in run.left and generation.route.finish != "deadline_exceeded"
    for choice in generation.choices:
        text = run.texts.get((generation, choice.index), "")
        whole = lab.text_of(request.params.seed, request.params.max_tokens, choice.index)
        ends = [whole.index(stop) for stop in request.stop if stop in whole]
        whole = whole[: min(ends)] if ends else whole
        assert text == whole if complete or choice.finish else whole.startswith(text), (choice.index, text, whole)
    assert not complete or generation.unfinished == 0
    return error


def _schedule(lab, seed):
    """Runs one; returns the stages that it saw, the errors, and how many sequences migrated."""
    run, stages = Simulation(seed, lab.vocabulary, lab.request), set()
    for _ in range(run.random.choice((40, 100))):
        run.happen()
        stages |= {sub.stage for generation in run.generations for sub in run.relay.sub_requests(generation)}
    patient = run.settle()
    assert run.relay.active == run.relay.waiting == 0, [run.relay.sub_requests(g) for g in run.generations]
    assert run.admission.queued == run.admission.queued_tokens == 0
    assert not any(worker.engine.jobs for worker in run.workers.values()), "a worker still has work"
    errors = {type(_check(lab, run, generation, generation in patient)) for generation in run.generations}
    return stages, errors, sum(report.source[0] != "p" for report in run.reports())


def test_whatever_happens_text_is_exact_and_nothing_is_left(lab):
    """They see every stage and most endings, and would prove little if they all went smoothly."""

    def migrations():
        return [count("migrations_total", reason=reason) for reason in ("draining", "step_time")]

    stages, errors, migrated, before = set(), set(), 0, migrations()
    for seed in range(times(100)):
        try:
            seen, ends, moved = _schedule(lab, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        stages, errors, migrated = stages | seen, errors | ends, migrated + moved
    assert stages == set(Stage) - {Stage.ARRIVED, Stage.ENDED}
    assert errors >= {type(None), DeadlineExceeded, SlowClient}
    assert migrated
    assert all(now > was for now, was in zip(migrations(), before, strict=True))
