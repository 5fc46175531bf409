"""Workers of a service are the pods that its own pools report."""

import json

import pytest

from legato_gateway.discovery import membership
from legato_gateway.discovery.endpoint_slices import BadAnswer
from legato_gateway.discovery.membership import Members


def pool(*uids):
    return json.dumps({"kind": "WorkerPool", "status": {"workers": uids, "replicas": 1}}).encode()


SILENT = (b'{"spec": {}}', b'{"status": {"replicas": 1}}', None)


@pytest.mark.parametrize(
    ("passes", "known"),
    [
        ([("abx", pool("a", "gone"), pool("b"))], "ab"),
        ([("x", pool(), None)], ""),
        *(([("ax", pool("a"), other)], "a") for other in SILENT),  # one pool that reports is enough
        *(([("ax", other, None)], "ax") for other in SILENT),  # where none reports, all are workers
        # one that was a worker stays one as long as it is there
        ([("a", pool("a")), ("ab", pool("b"))], "ab"),
        ([("a", pool("a")), ("b", pool("b")), ("ab", pool("b"))], "b"),
    ],
)
def test_pods_that_a_pool_reports_are_workers(passes, known):
    members = Members()
    for uids, *answers in passes:
        members.learn(frozenset(uids), answers)
    assert set(members.known) == set(known)


def test_only_pods_that_are_not_known_raise_doubts():
    members = Members()
    members.learn(frozenset("ax"), [pool("a")])
    assert [members.doubts(frozenset(uids)) for uids in ("a", "ax")] == [False, True]


def test_an_answer_that_is_not_a_pool_is_reported():
    with pytest.raises(BadAnswer, match="not a WorkerPool"):
        Members().learn(frozenset("a"), [b"<html>"])


def test_pools_are_those_of_the_service_whose_workers_are_asked_for():
    assert membership.pools("demo-workers") == ("demo-prefill", "demo-decode")
