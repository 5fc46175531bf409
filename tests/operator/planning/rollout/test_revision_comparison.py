"""The comparison of two revisions: what counts as worse, as good, and as too little to tell."""

import math

import pytest

from legato_operator.api.resources import CanarySpec
from legato_operator.planning.rollout.revision_comparison import Finding, compare, total
from legato_protocol.wire.canary import DurationBucket, RevisionReport

GOOD, WORSE, OPEN = Finding.GOOD, Finding.WORSE, Finding.OPEN
SPEC = CanarySpec(minRequests=20, maxSlowdown=20)


def bucket(count, seconds, spread=0.3, least=64):
    """Half of the requests took a little longer than that, half a little less."""
    log = math.log(seconds)
    return DurationBucket(least, count, count * log, count * (log * log + spread * spread))


def revision(count, ttft=1.0, tpot=0.1, failures=0):
    return RevisionReport(count, failures, (bucket(count, ttft),), (bucket(count, tpot),))


OLD = revision(400)


@pytest.mark.parametrize(
    ("new", "finding"),
    [
        (revision(19, ttft=9.0), OPEN),
        (revision(40), GOOD),
        (revision(40, ttft=0.5, tpot=0.05), GOOD),
        (revision(40, ttft=2.0), WORSE),
        (revision(40, tpot=0.2), WORSE),
        (revision(40, ttft=1.3), OPEN),
        (revision(4000, ttft=1.4), WORSE),
        (revision(40, failures=1), OPEN),
        (revision(200, failures=1), GOOD),
        (revision(40, failures=4), WORSE),
        (RevisionReport(40), OPEN),
        (RevisionReport(40, 40), WORSE),
    ],
    ids=str,
)
def test_finding(new, finding):
    assert compare(OLD, new, SPEC).finding is finding


def test_requests_are_compared_with_such_as_long():
    """The new revision got more of the long ones, by chance: it is not slower for that."""
    short, long = {"seconds": 1.0, "least": 64}, {"seconds": 10.0, "least": 1024}
    tpot = (bucket(100, 0.1),)
    old = RevisionReport(400, 0, (bucket(390, **short), bucket(10, **long)), tpot)
    new = RevisionReport(40, 0, (bucket(20, **short), bucket(20, **long)), tpot)
    assert compare(old, new, SPEC).finding is GOOD


def test_gateways_are_added_up():
    halves = [revision(200), revision(200)]
    assert total(halves) == RevisionReport(
        400,
        0,
        (DurationBucket(64, 400, 2 * halves[0].ttft[0].logs, 2 * halves[0].ttft[0].squares),),
        (DurationBucket(64, 400, 2 * halves[0].tpot[0].logs, 2 * halves[0].tpot[0].squares),),
    )
    assert total([]) == RevisionReport()


def test_the_text_has_the_arithmetic():
    text = compare(OLD, revision(40, failures=4), SPEC).text
    assert "4 of 40 attempts failed (0 of 400 on the old revision)" in text
    assert "TTFT 1.00 times the old revision's (at least 0.86)" in text
