"""Requests of a canary in the relay: their share, their retries, and the counts by revision."""

import pytest
from relay_script import Scripted

from legato_protocol.wire.canary import Canary

CANARY = Canary({"decode": "new"}, 50)


def running(lab, canary=CANARY):
    """One old and one new worker that do everything."""
    run = Scripted(lab, "u", "u")
    run.greet("u1", pod_revision="new")
    run.relay.set_canary(canary)
    return run


def placed_at(run, name):
    """A request at that worker, by the chance of its id."""
    return next(each for _ in range(100) if run.sub(each := run.start()).place.decode == name)


def counts(run):
    return {name: (each.requests, each.failures) for name, each in reports(run).items()}


def reports(run):
    report = run.demand().canary
    return {"old": report.old, "new": report.new}


def test_requests_are_shared_by_weight_and_counted_by_revision(lab):
    run = running(lab)
    generations = [run.start() for _ in range(40)]
    places = [run.sub(each).place.decode for each in generations]
    assert counts(run) == {"old": (places.count("u0"), 0), "new": (places.count("u1"), 0)}
    assert places.count("u1") == pytest.approx(20, abs=10)


def test_a_failed_attempt_counts_against_its_revision_and_is_retried_on_the_other(lab):
    run = running(lab)
    generation = placed_at(run, "u1")
    before = counts(run)
    run.fail(run.sub(generation))
    assert run.sub(generation).place.decode == "u0"
    after = counts(run)
    assert after["new"] == (before["new"][0], before["new"][1] + 1)
    assert after["old"] == (before["old"][0] + 1, before["old"][1])


def test_durations_are_of_first_attempts_by_tokens(lab):
    run = running(lab)
    generation = placed_at(run, "u1")
    run.time.advance(2.0)
    run.token(run.sub(generation))
    (bucket,) = reports(run)["new"].ttft
    assert (bucket.least, bucket.requests, bucket.logs) == (64, 1, pytest.approx(0.693, abs=0.01))
    run.time.advance(0.5)
    run.token(run.sub(generation), index=1, finish="stop")
    (bucket,) = reports(run)["new"].tpot
    assert (bucket.least, bucket.requests, bucket.logs) == (64, 1, pytest.approx(-0.693, abs=0.01))
    again = placed_at(run, "u1")
    run.fail(run.sub(again))
    run.token(run.sub(again))
    assert not reports(run)["old"].ttft


def test_a_canary_of_weight_0_gets_nothing_and_another_one_counts_anew(lab):
    run = running(lab)
    earlier = placed_at(run, "u1")
    run.relay.set_canary(Canary(CANARY.revisions, 50))
    assert counts(run)["new"] != (0, 0), "the same one goes on"
    run.time.advance(1.0)
    run.relay.set_canary(Canary(CANARY.revisions, 0))
    assert counts(run) == {"old": (0, 0), "new": (0, 0)}
    run.fail(run.sub(earlier))
    assert counts(run) == {"old": (1, 0), "new": (0, 0)}, "its retry counts, its failure does not"
    assert {run.sub(run.start()).place.decode for _ in range(20)} == {"u0"}
    run.relay.set_canary(None)
    assert run.demand().canary is None
