"""Routes to a service from outside: noted, made, told and removed again; what the cluster cannot have stops nothing."""

import dataclasses

import pytest
from planned import actions, observed

from legato_operator.api import conditions
from legato_operator.cluster import Ref
from legato_operator.manifests import placement, route
from legato_operator.planning.actions import Apply, Delete, PatchStatus
from legato_operator.planning.plan import plan

PLACEMENT = placement.kubernetes(placement.Containers("engine:1", "gateway:1"))
HTTP_ROUTE = {"parentRefs": [{"name": "public", "namespace": "infra"}], "hostnames": ["a.example.com"]}
INGRESS = {"hosts": ["a.example.org"]}
AT = {"timestamp": "1970-01-01T00:16:40Z"}  # 1,000 s
BOTH = {"httpRoute": HTTP_ROUTE, "ingress": INGRESS}
MISSING = {"HTTPRoute": (conditions.ROUTE_API_MISSING, "the cluster has no HTTPRoute")}


def _live(observed, **status):
    """Objects as if a plan's routes had been made, with a status by kind."""
    made = [a.item for a in actions(plan(observed, PLACEMENT), Apply) if a.item["kind"] in route.KINDS]
    more = {"uid": "route", "generation": 2}
    return tuple(
        {**item, "metadata": {**item["metadata"], **more}, "status": status.get(item["kind"], {})} for item in made
    )


def _routes(made, kind):
    found = ((a.item["kind"], a.item["metadata"]["name"]) if kind is Apply else (a.ref.kind, a.ref.name) for a in made)
    return {each for each in found if each[0] in route.KINDS}


def _parent(status="True", generation=2, kind="Accepted", reason="Accepted", ref=HTTP_ROUTE["parentRefs"][0]):
    told = {"type": kind, "status": status, "reason": reason, "message": "it says", "observedGeneration": generation}
    return {"parentRef": ref, "conditions": [told]}


def test_a_service_without_routes_has_none_and_says_nothing_of_them(build):
    made = plan(observed(build(), **AT), PLACEMENT)
    assert not _routes(actions(made, Apply), Apply)
    assert "routes" not in made.status
    assert conditions.find(made.status, "RouteReady") == {}


def test_routes_are_written_down_before_they_are_made(build):
    """So that one is found again whose field was removed while no operator ran."""
    made = plan(observed(build(gateway=BOTH), **AT), PLACEMENT)
    first = made.phases[0]
    assert [phase.name for phase in made.phases[:2]] == ["note", "own"]
    (note,) = first.actions
    assert isinstance(note, PatchStatus)
    assert (note.ref, note.uid) == (Ref("InferenceService", "default", "demo"), "uid")
    assert [entry["kind"] for entry in note.status["routes"]] == ["HTTPRoute", "Ingress"]
    applied = {("HTTPRoute", "demo-gateway"), ("Ingress", "demo-gateway")}
    assert _routes(actions(made, Apply), Apply) == applied
    again = plan(observed(build(gateway=BOTH), status=note.status, **AT), PLACEMENT)
    assert "note" not in [phase.name for phase in again.phases]
    assert _routes(actions(again, Apply), Apply) == applied


def test_a_route_that_is_no_longer_wanted_goes_and_is_remembered_until_it_has(build):
    before = observed(build(gateway=BOTH), **AT)
    status = plan(before, PLACEMENT).status
    without = observed(build(gateway={"ingress": INGRESS}), objects=_live(before), status=status, **AT)
    made = plan(without, PLACEMENT)
    assert _routes(actions(made, Delete), Delete) == {("HTTPRoute", "demo-gateway")}
    assert {entry["kind"] for entry in made.status["routes"]} == {"HTTPRoute", "Ingress"}
    gone = plan(dataclasses.replace(without, objects=_live(without), status=made.status), PLACEMENT)
    assert [entry["kind"] for entry in gone.status["routes"]] == ["Ingress"]
    none = plan(observed(build(), status=gone.status, **AT), PLACEMENT)
    assert none.status["routes"] is None
    assert conditions.find(none.status, "RouteReady") == {}


def test_one_that_nobody_may_look_for_any_more_is_not_forgotten(build):
    status = plan(observed(build(gateway=BOTH), **AT), PLACEMENT).status
    refused = dict.fromkeys(route.KINDS, (conditions.API_REFUSED, "403"))
    made = plan(observed(build(), status=status, unusable=refused, **AT), PLACEMENT)
    assert {entry["kind"] for entry in made.status["routes"]} == set(route.KINDS)
    without_api = dict.fromkeys(route.KINDS, (conditions.ROUTE_API_MISSING, "404"))
    assert plan(observed(build(), status=status, unusable=without_api, **AT), PLACEMENT).status["routes"] is None


def test_a_cluster_without_the_gateway_api_serves_all_else(build):
    made = plan(observed(build(gateway=BOTH), unusable=MISSING, **AT), PLACEMENT)
    assert _routes(actions(made, Apply), Apply) == {("Ingress", "demo-gateway")}
    told = conditions.find(made.status, "RouteReady")
    assert (told["status"], told["reason"]) == ("False", "RouteAPIMissing")
    assert "the cluster has no HTTPRoute" in told["message"]
    assert "Ingress demo-gateway is being created" in told["message"]
    assert "Deployment" in {action.item["kind"] for action in actions(made, Apply)}


ADDRESS = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example.net"}]}}


@pytest.mark.parametrize(
    ("parents", "reason", "told"),
    [
        ([_parent()], "Accepted", "HTTPRoute demo-gateway is accepted by Gateway infra/public"),
        ([], "RoutePending", "HTTPRoute demo-gateway waits for Gateway infra/public"),
        ([_parent(status="Unknown")], "RoutePending", "waits for Gateway infra/public"),
        ([_parent(generation=1)], "RoutePending", "waits for Gateway infra/public"),
        ([_parent(ref={"name": "other", "namespace": "infra"})], "RoutePending", "waits for Gateway infra/public"),
        ([_parent(ref={"name": "public"})], "RoutePending", "waits for Gateway infra/public"),
        ([_parent("False", reason="NotAllowedByListeners")], "RouteRefused", "NotAllowedByListeners: it says"),
        ([_parent(), _parent("False", kind="ResolvedRefs", reason="X")], "RouteRefused", "infra/public: X: it says"),
    ],
)
def test_the_condition_says_what_gateways_say(build, parents, reason, told):
    item = build(gateway=BOTH)
    live = _live(observed(item, **AT), HTTPRoute={"parents": parents}, Ingress=ADDRESS)
    made = plan(observed(item, objects=live, **AT), PLACEMENT)
    found = conditions.find(made.status, "RouteReady")
    assert (found["status"], found["reason"]) == (str(reason == "Accepted"), reason)
    assert told in found["message"]
    assert "Ingress demo-gateway has 192.0.2.1, lb.example.net" in found["message"]
    of_gateway, of_ingress = made.status["routes"]
    assert of_gateway["accepted"] is (reason == "Accepted")
    assert of_ingress["accepted"] is True
    assert of_ingress["addresses"] == ["192.0.2.1", "lb.example.net"]
    assert (of_gateway["hosts"], of_ingress["hosts"]) == (["a.example.com"], ["a.example.org"])


def test_a_route_whose_parents_somebody_removed_waits_and_gets_them_again(build):
    item = build(gateway=BOTH)
    live = _live(observed(item, **AT), HTTPRoute={"parents": [_parent()]}, Ingress=ADDRESS)
    for spec in ({"hostnames": HTTP_ROUTE["hostnames"]}, {"parentRefs": None}, {"parentRefs": []}):
        bare = tuple({**each, "spec": spec} if each["kind"] == "HTTPRoute" else each for each in live)
        made = plan(observed(item, objects=bare, **AT), PLACEMENT)
        found = conditions.find(made.status, "RouteReady")
        assert (found["status"], found["reason"]) == ("False", "RoutePending")
        assert "HTTPRoute demo-gateway names no Gateway" in found["message"]
        assert ("HTTPRoute", "demo-gateway") in _routes(actions(made, Apply), Apply)


def test_a_host_that_an_older_service_has_is_told(build):
    item = build(gateway=BOTH)
    live = _live(observed(item, **AT), HTTPRoute={"parents": [_parent()]}, Ingress=ADDRESS)
    taken = (("a.example.com", Ref("InferenceService", "other", "first")),)
    found = conditions.find(plan(observed(item, objects=live, hosts_taken=taken, **AT), PLACEMENT).status, "RouteReady")
    assert (found["status"], found["reason"]) == ("False", "HostConflict")
    assert "a.example.com is also a host of the older service other/first" in found["message"]


def test_one_machine_has_no_routes(build):
    local = placement.local(("legato",))
    assert plan(observed(build(gateway=BOTH), **AT), local) == plan(observed(build(), **AT), local)
