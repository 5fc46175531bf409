"""Routes that a pass reads: only of services that have or want them, and only if the cluster allows it."""

import asyncio

import pytest

from legato_operator.api import parsing
from legato_operator.cluster import ObjectList, Ref
from legato_operator.errors import Forbidden, ObjectNotFound, Unavailable
from legato_operator.observing.observe import find_routes

DEMO = Ref("InferenceService", "default", "demo")
INGRESS = {"gateway": {"ingress": {"hosts": ["a.example"]}}}


class Lists:
    """A cluster that answers lists of a kind so."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def list(self, kind, namespace, labels):
        self.asked.append((kind, namespace, labels))
        if isinstance(answer := self.answers[kind], Exception):
            raise answer
        return ObjectList(tuple(answer), 1)


def _found(cluster, item, status):
    return asyncio.run(find_routes(cluster, DEMO, parsing.read_service(item), status))


def test_a_service_without_routes_asks_for_none(build):
    cluster = Lists()
    assert _found(cluster, build(), {}) == ([], {})
    assert cluster.asked == []


def test_those_that_are_wanted_or_were_made_are_looked_for(build):
    cluster = Lists(Ingress=[{"kind": "Ingress"}], HTTPRoute=[])
    status = {"routes": [{"kind": "HTTPRoute", "name": "demo-gateway"}]}
    assert _found(cluster, build(**INGRESS), status) == ([{"kind": "Ingress"}], {})
    mine = {"serving.legato.dev/service": "demo"}
    assert cluster.asked == [("HTTPRoute", "default", mine), ("Ingress", "default", mine)]


@pytest.mark.parametrize(
    ("error", "reason", "told"),
    [(ObjectNotFound("404"), "RouteAPIMissing", "the cluster has no Ingress"), (Forbidden("403"), "APIRefused", "403")],
)
def test_a_kind_that_cannot_be_used_stops_nothing(build, error, reason, told):
    found, unusable = _found(Lists(Ingress=error), build(**INGRESS), {})
    assert found == []
    assert unusable["Ingress"][0] == reason
    assert told in unusable["Ingress"][1]


def test_an_api_server_that_does_not_answer_is_no_reason_to_forget_a_route(build):
    with pytest.raises(Unavailable):
        _found(Lists(Ingress=Unavailable("503")), build(**INGRESS), {})
