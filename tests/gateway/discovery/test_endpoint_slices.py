"""Workers by the EndpointSlices of a Service, whatever form they take."""

import json

import pytest

from legato_gateway.discovery.addresses import WorkerAddress
from legato_gateway.discovery.endpoint_slices import PLAIN, TLS, BadAnswer, Slices, message

CONTROL = ({"name": "control", "port": 8082},)


def pod(name, *addresses, kind="Pod", **conditions):
    return {"addresses": list(addresses), "conditions": conditions, "targetRef": {"kind": kind, "name": name}}


def at(address, **conditions):
    return pod("d-0", address, **conditions)


def item(name, *endpoints, version="1", family="IPv4", ports=CONTROL):
    """An EndpointSlice, with more in it than is read."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "resourceVersion": version, "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports),
    }


def listed(*items, version="9", ports=PLAIN):
    slices = Slices(ports)
    slices.replace(json.dumps({"metadata": {"resourceVersion": version}, "items": items}).encode())
    return slices


def workers(slices):
    return slices.workers(slices.uids)


def addresses(slices):
    return {worker.worker: worker.address for worker in workers(slices)}


def event(kind, of):
    return json.dumps({"type": kind, "object": of}).encode() + b"\n"


def test_addresses_of_all_slices_count_ready_or_not():
    slices = listed(
        item("a", pod("d-0", "10.0.0.1", ready=True), pod("d-1", "10.0.0.2", ready=False, serving=False)),
        item("b", pod("p-0", "10.0.0.3"), ports=({"name": "other", "port": 1}, {"name": "control", "port": 9000})),
    )
    assert workers(slices) == (
        WorkerAddress("d-0", "10.0.0.1:8082"),
        WorkerAddress("d-1", "10.0.0.2:8082"),
        WorkerAddress("p-0", "10.0.0.3:9000"),
    )


@pytest.mark.parametrize(
    "useless",
    [
        item("a", pod("d-0", "10.0.0.1"), ports=()),
        item("a", pod("d-0", "10.0.0.1"), ports=({"name": "http", "port": 80},)),
        item("a", pod("d-0", "10.0.0.1"), ports=({"name": "control"},)),
        item("a", pod("d-0", "name.example"), family="FQDN"),
        item("a", pod("d-0", "10.0.0.1", kind="Node")),
        item("a", pod("d-0")),
        item("a", {"addresses": ["10.0.0.1"]}),
        item("a") | {"endpoints": None, "ports": None},
    ],
)
def test_a_slice_without_a_reachable_pod_has_no_worker(useless):
    assert workers(listed(useless, item("b", pod("d-1", "10.0.0.2")))) == (WorkerAddress("d-1", "10.0.0.2:8082"),)


SECURED = {"name": "control-tls", "port": 8084}


@pytest.mark.parametrize("ports", [TLS, PLAIN])
def test_worker_is_reached_with_tls_where_both_ends_have_it(ports):
    """A slice has the ports that its pods have: so pods of before and after a change go together."""
    slices = listed(
        item("plain", pod("old", "10.0.0.1")),
        item("permissive", pod("both", "10.0.0.2"), ports=(*CONTROL, SECURED)),
        item("strict", pod("sealed", "10.0.0.3"), ports=(SECURED,)),
        ports=ports,
    )
    old = WorkerAddress("old", "10.0.0.1:8082")
    if ports is PLAIN:
        assert workers(slices) == (WorkerAddress("both", "10.0.0.2:8082"), old)
    else:
        both, sealed = WorkerAddress("both", "10.0.0.2:8084", True), WorkerAddress("sealed", "10.0.0.3:8084", True)
        assert workers(slices) == (both, old, sealed)


def test_events_change_single_slices():
    slices = listed(item("a", pod("d-0", "10.0.0.1")), item("b", pod("d-1", "10.0.0.2")))
    slices.apply(event("MODIFIED", item("a", pod("d-0", "10.0.0.9"), version="11")))
    assert addresses(slices) == {"d-0": "10.0.0.9:8082", "d-1": "10.0.0.2:8082"}
    slices.apply(event("DELETED", item("b", version="12")))
    slices.apply(event("ADDED", item("c", pod("d-2", "10.0.0.3"), version="13")))
    assert addresses(slices) == {"d-0": "10.0.0.9:8082", "d-2": "10.0.0.3:8082"}
    slices.apply(event("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": "99"}}))
    assert addresses(slices) == {"d-0": "10.0.0.9:8082", "d-2": "10.0.0.3:8082"}
    assert slices.version == "99"


def test_a_list_forgets_what_it_does_not_have():
    slices = listed(item("a", pod("d-0", "10.0.0.1")))
    slices.replace(json.dumps({"metadata": {"resourceVersion": "20"}, "items": None}).encode())
    assert workers(slices) == ()
    assert slices.version == "20"


ENDING = item("a", at("10.0.0.1", terminating=True), version="9")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "address"),
    [
        # moved from one slice to another
        (item("a", at("10.0.0.1")), item("b", at("10.0.0.1")), "10.0.0.1:8082"),
        # a pod of the same name follows one that ends
        (ENDING, item("b", at("10.0.0.2"), version="8"), "10.0.0.2:8082"),
        # numbers are compared as numbers
        (item("a", at("10.0.0.1"), version="9"), item("b", at("10.0.0.2"), version="10"), "10.0.0.2:8082"),
        # both kinds of addresses: one of them, whichever slice is newer
        (item("a", at("10.0.0.1")), item("b", at("fd00::1"), version="10", family="IPv6"), "10.0.0.1:8082"),
    ],
)
def test_a_worker_in_two_slices_is_reported_once(first, second, address, swapped):
    pair = (second, first) if swapped else (first, second)
    assert workers(listed(*pair)) == (WorkerAddress("d-0", address),)


def test_ipv6_addresses_are_bracketed():
    assert addresses(listed(item("a", pod("d-0", "fd00::1"), family="IPv6"))) == {"d-0": "[fd00::1]:8082"}


@pytest.mark.parametrize(
    "line", [b"<html>", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": {"endpoints": 3}}', b"\xff"]
)
def test_what_the_api_does_not_promise_is_a_bad_answer(line):
    slices = listed(item("a", pod("d-0", "10.0.0.1")))
    for take in (slices.apply, slices.replace):
        with pytest.raises(BadAnswer):
            take(line)
    assert addresses(slices) == {"d-0": "10.0.0.1:8082"}


def test_a_refusal_has_its_message():
    assert message(b'{"kind": "Status", "message": "endpointslices is forbidden"}') == "endpointslices is forbidden"
    assert message(b"no healthy upstream") == "no healthy upstream"
