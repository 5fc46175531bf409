"""Of which pods the service's own pools tell."""

import json

import pytest

from legato_gateway.discovery import membership
from legato_gateway.discovery.endpoint_slices import BadAnswer
from legato_gateway.discovery.membership import Members


def pool(*uids):
    return json.dumps({"kind": "WorkerPool", "status": {"workers": uids, "replicas": 1}}).encode()


UNTOLD = (b'{"spec": {}}', b'{"status": {"replicas": 1}}', None)


def known(uids, *answers, before=()):
    members = Members()
    for each in before:
        members.learn(frozenset(each[0]), each[1:])
    members.learn(frozenset(uids), answers)
    return set(members.known)


def test_pods_that_a_pool_tells_of_are_workers_and_no_others():
    assert known("abx", pool("a", "gone"), pool("b")) == {"a", "b"}
    assert known("x", pool(), None) == set()


@pytest.mark.parametrize("other", UNTOLD)
def test_one_pool_that_tells_is_enough(other):
    assert known("ax", pool("a"), other) == {"a"}


@pytest.mark.parametrize("answer", UNTOLD)
def test_where_none_tells_all_are(answer):
    assert known("ax", answer, None) == {"a", "x"}


def test_one_that_was_a_worker_stays_one_as_long_as_it_is_there():
    assert known("ab", pool("b"), before=[("a", pool("a"))]) == {"a", "b"}
    assert known("ab", pool("b"), before=[("a", pool("a")), ("b", pool("b"))]) == {"b"}


def test_only_pods_that_are_not_known_raise_doubts():
    members = Members()
    members.learn(frozenset("ax"), [pool("a")])
    assert not members.doubts(frozenset("a"))
    assert members.doubts(frozenset("ax"))


def test_answer_that_is_no_pool_is_told():
    with pytest.raises(BadAnswer, match="no WorkerPool"):
        known("a", b"<html>")


def test_pools_are_those_of_the_service_whose_workers_are_asked_for():
    assert membership.pools("demo-workers") == ("demo-prefill", "demo-decode")
