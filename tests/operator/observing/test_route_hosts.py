"""Two services that want the same host at the same place: the younger is told."""

import asyncio

import pytest

from legato_operator.cluster import ObjectList, Ref
from legato_operator.observing.route_hosts import LISTED_FOR, RouteHosts


def _service(name, created=1, namespace="team", **gateway):
    stamp = f"2026-01-01T00:00:{created:02}Z"
    metadata = {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": stamp}
    return {"kind": "InferenceService", "metadata": metadata, "spec": {"gateway": gateway}}


def _ingress(*hosts, **more):
    return {"ingress": {"hosts": list(hosts), **more}}


def _http_route(hosts=(), **parent):
    return {"httpRoute": {"parentRefs": [{"name": "public", **parent}], "hostnames": list(hosts)}}


class Listed:
    """A cluster that knows these services, and a clock."""

    def __init__(self, *services):
        self.services = services
        self.asked = []
        self.time = 1000.0

    async def list(self, kind, namespace=None, labels=None):
        self.asked.append(namespace)
        found = (each for each in self.services if namespace in (None, each["metadata"]["namespace"]))
        return ObjectList(tuple(found), 1)

    def now(self):
        return self.time


def _taken(mine, *others, namespaces=()):
    listed = Listed(mine, *others)
    return asyncio.run(RouteHosts(listed, listed, namespaces).find_taken(mine))


@pytest.mark.parametrize(
    ("mine", "other", "host"),
    [
        (_ingress("a.example", "b.example"), _ingress("a.example"), "a.example"),
        (_ingress("a.example", className="nginx"), _ingress("a.example", className="nginx"), "a.example"),
        (_http_route(["a.example"]), _http_route(["a.example", "b.example"]), "a.example"),
        (_http_route(["a.example"], sectionName="https"), _http_route(["a.example"]), "a.example"),
        (_http_route(["a.example"], namespace="infra"), _http_route(["a.example"], namespace="infra"), "a.example"),
        (_http_route(), _http_route(), "*"),  # all hosts of a gateway
        # Hosts at different places are different.
        (_ingress("a.example"), _ingress("b.example"), ""),
        (_ingress("a.example"), _ingress("*.example"), ""),
        (_ingress("a.example", className="inner"), _ingress("a.example", className="outer"), ""),
        (_ingress("a.example"), _http_route(["a.example"]), ""),
        (_http_route(["a.example"], namespace="infra"), _http_route(["a.example"]), ""),
        (_http_route(["a.example"], sectionName="https"), _http_route(["a.example"], sectionName="http"), ""),
        (_http_route(["a.example"]), {}, ""),
        ({}, _ingress("a.example"), ""),
    ],
)
def test_host_belongs_to_the_older_of_two(mine, other, host):
    young, old = _service("young", 2, **mine), _service("old", 1, **other)
    assert _taken(young, old) == (((host, Ref("InferenceService", "team", "old")),) if host else ())
    assert _taken(old, young) == ()


def test_of_two_made_in_the_same_second_one_is_told():
    one, two = _service("one", **_ingress("a.example")), _service("two", **_ingress("a.example"))
    assert (_taken(one, two), _taken(two, one)) == ((), (("a.example", Ref("InferenceService", "team", "one")),))


def test_one_that_is_leaving_has_no_hosts():
    leaving = _service("old", 1, **_ingress("a.example"))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert _taken(_service("young", 2, **_ingress("a.example")), leaving) == ()


async def test_services_are_listed_once_for_all_that_look_together_and_not_for_those_without_routes():
    services = [_service(f"s{number}", number, **_ingress("a.example")) for number in range(5)]
    listed = Listed(*services, _service("plain"))
    hosts = RouteHosts(listed, listed, ("team", "other"))
    assert await hosts.find_taken(_service("plain")) == ()
    assert listed.asked == []
    for service in services:
        await hosts.find_taken(service)
    assert listed.asked == ["team", "other"]
    listed.time += LISTED_FOR
    await hosts.find_taken(services[0])
    assert len(listed.asked) == 4
