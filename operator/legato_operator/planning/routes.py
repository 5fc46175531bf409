"""Routes to a service from outside the cluster: the desired ones, and their state. Pure.

Their kinds are optional and not watched, so they are read only for services with routes. `status.routes` lists the
kinds that a service has; it is written before a route is created, so that none is forgotten.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from legato_operator.api import conditions
from legato_operator.api.conditions import Condition
from legato_operator.cluster import Object, Ref, seconds_of
from legato_operator.manifests import route
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Observed
from legato_operator.planning.actions import PatchStatus

STATUS = "routes"
_RECHECK_EVERY, _RECHECK_FOR = 2.0, 60.0  # seconds: controllers accept a new route soon or not at all
_NO_STATUS: Mapping[str, Any] = {}
_WORST_FIRST = (
    conditions.ROUTE_API_MISSING,
    conditions.API_REFUSED,
    conditions.ROUTE_REFUSED,
    conditions.HOST_CONFLICT,
    conditions.ROUTE_PENDING,
    conditions.ACCEPTED,
)


def desired(observed: Observed) -> list[dict[str, Any]]:
    """Returns the routes that the manifest asks for and the cluster supports."""
    return [item for item in route.routes(observed.service) if item["kind"] not in observed.unusable]


def note(observed: Observed, placement: PodPlacement) -> Iterator[PatchStatus]:
    """Yields a status patch that lists new routes, before they are created."""
    if placement.containers is None:
        return
    listed = observed.status.get(STATUS) or []
    known = {entry["kind"] for entry in listed}
    added = [_entry(observed, item) for item in desired(observed) if item["kind"] not in known]
    if added:
        yield PatchStatus(observed.service.ref, {STATUS: [*listed, *added]}, observed.uid)


def status_fields(observed: Observed) -> dict[str, Any]:
    """Returns the routes' part of the status: desired routes and possible leftovers. Null removes the field."""
    wanted = {item["kind"]: item for item in route.routes(observed.service)}
    entries = [_entry(observed, item) for item in wanted.values()]
    for before in observed.status.get(STATUS) or ():
        kind = before["kind"]
        refused = observed.unusable.get(kind, ("", ""))[0] == conditions.API_REFUSED
        if kind not in wanted and (refused or observed.find(kind, before["name"])):
            entries.append(before)
    if not entries and not observed.status.get(STATUS):
        return {}
    return {STATUS: sorted(entries, key=lambda entry: str(entry["kind"])) or None}


def condition(observed: Observed) -> Condition | None:
    """Returns the routes' condition, with the worst state's reason; None if the manifest asks for no route."""
    states = [_state(observed, item) for item in route.routes(observed.service)]
    if observed.hosts_taken and states:
        states.append((conditions.HOST_CONFLICT, _taken(observed.hosts_taken)))
    if not states:
        return None
    states.sort(key=lambda each: _WORST_FIRST.index(each[0]))
    reason = states[0][0]
    return Condition(
        conditions.ROUTE_READY, reason == conditions.ACCEPTED, reason, "; ".join(text for _, text in states)
    )


def recheck_after(observed: Observed, usual: float) -> float:
    """Returns the seconds until the next read of the routes, which are not watched: less than `usual` for a new one."""
    current = condition(observed)
    if current is None or current.reason != conditions.ROUTE_PENDING:
        return usual
    written = conditions.find(observed.status, conditions.ROUTE_READY)
    if written.get("reason") == conditions.ROUTE_PENDING:
        since = seconds_of(written["lastTransitionTime"])
        if observed.now - since > _RECHECK_FOR:
            return usual
    return min(usual, _RECHECK_EVERY)


def _entry(observed: Observed, item: Mapping[str, Any]) -> dict[str, Any]:
    live = observed.find(item["kind"], item["metadata"]["name"])
    addresses = _addresses(live) if live is not None and item["kind"] == route.INGRESS else []
    return {
        "kind": item["kind"],
        "name": item["metadata"]["name"],
        "hosts": list(route.hosts(item)),
        "accepted": _state(observed, item)[0] == conditions.ACCEPTED,
        **({"addresses": addresses} if addresses else {}),
    }


def _state(observed: Observed, item: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the reason and message of one route."""
    kind, name = item["kind"], item["metadata"]["name"]
    if kind in observed.unusable:
        return observed.unusable[kind]
    live = observed.find(kind, name)
    if live is None:
        return conditions.ROUTE_PENDING, f"{kind} {name} is being created"
    return _ingress_state(live) if kind == route.INGRESS else _http_route_state(live)


def _ingress_state(live: Object) -> tuple[str, str]:
    name = live["metadata"]["name"]
    if addresses := _addresses(live):
        return conditions.ACCEPTED, f"Ingress {name} has {', '.join(addresses)}"
    return conditions.ROUTE_PENDING, f"no ingress controller has given Ingress {name} an address"


def _addresses(live: Object) -> list[str]:
    points = live.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    return [text for point in points if (text := point.get("hostname") or point.get("ip"))]


def _http_route_state(live: Object) -> tuple[str, str]:
    """Returns the reason and message of an HTTPRoute.

    Each of its Gateways must accept its newest spec and find the Service.
    """
    name, waiting, refused = live["metadata"]["name"], [], []
    given = live["spec"].get("parentRefs") or ()
    if not given:  # somebody removed them; the next apply restores them
        return conditions.ROUTE_PENDING, f"HTTPRoute {name} names no Gateway"
    parents = [(_gateway(parent, live), _answers(parent, live)) for parent in given]
    for gateway, answers in parents:
        rejections = [
            f"{gateway}: {each['reason']}: {each['message']}" for each in answers if each["status"] == "False"
        ]
        refused += rejections
        accepts = any(each["type"] == "Accepted" and each["status"] == "True" for each in answers)
        waiting += [] if accepts or rejections else [gateway]
    if refused:
        return conditions.ROUTE_REFUSED, f"HTTPRoute {name}: {'; '.join(refused)}"
    if waiting:
        return conditions.ROUTE_PENDING, f"HTTPRoute {name} waits for {', '.join(waiting)}"
    return conditions.ACCEPTED, f"HTTPRoute {name} is accepted by {', '.join(gateway for gateway, _ in parents)}"


def _answers(parent: Mapping[str, Any], live: Object) -> list[Mapping[str, Any]]:
    """Returns the conditions that controllers report for this parent and the route's newest spec."""
    reported: Iterable[Mapping[str, Any]] = live.get("status", {}).get("parents") or ()
    matching = (each for each in reported if _place(each.get("parentRef", _NO_STATUS), live) == _place(parent, live))
    every = (each for answer in matching for each in answer.get("conditions") or ())
    newest = live["metadata"].get("generation", 0)
    return [each for each in every if each.get("observedGeneration", newest) >= newest]


def _place(parent: Mapping[str, Any], live: Object) -> tuple[Any, ...]:
    namespace = parent.get("namespace") or live["metadata"]["namespace"]
    return namespace, parent.get("name"), parent.get("sectionName"), parent.get("port")


def _gateway(parent: Mapping[str, Any], live: Object) -> str:
    namespace, name, section, _ = _place(parent, live)
    return f"Gateway {namespace}/{name}" + (f" ({section})" if section else "")


def _taken(taken: Sequence[tuple[str, Ref]]) -> str:
    return "; ".join(f"{host} is also a host of the older service {ref.namespace}/{ref.name}" for host, ref in taken)
