"""`legato describe`: describes a running service, with recent decisions and Events."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from legato_cli.services import explain, options, showing
from legato_cli.services.status import state, table

MOST = 10  # changes and Events
_DEFAULTS = {  # by `model.generationConfig`
    "Model": "sampling defaults are the model's (`legato state` shows them)",
    "None": "sampling defaults are neutral, whatever the model's are",
}
HELP = "show a running service in words: conditions, pools, workers, decisions and Events"
add_flags = options.add_shown


def run(args: argparse.Namespace) -> int:
    """Prints the description. Raises ServiceUnavailable."""
    return showing.run(args, "describe", lines)


def lines(service: Mapping[str, Any]) -> Iterator[str]:
    """Yields the description of a service, section by section, without empty sections."""
    yield f"{service['name']} in namespace {service['namespace']}, generation {service['generation']}"
    if "url" in service:
        yield f"  serves {service.get('model', service['name'])} at {service['url']}"
    if "generationConfig" in service:
        yield f"  {_DEFAULTS[service['generationConfig']]}"
    scaling = service["scaling"] or {}
    sections = {
        "Conditions": [line for each in service["conditions"] for line in _condition(each)],
        "Pools": [line for each in service.get("pools", {}).items() for line in _pool(*each)],
        "Workers and gateways": list(table([_worker(pod) for pod in service["pods"]])),
        "Scaling": [*_paused(scaling), *explain.changes(scaling, MOST)],
        "Events": list(table([_event(event) for event in service["events"][-MOST:]])),
    }
    for title, section in sections.items():
        if section:
            yield f"{title}:"
            yield from (f"  {line}" for line in section)


def _condition(condition: Mapping[str, Any]) -> Iterator[str]:
    since = f" since {condition['lastTransitionTime']}" if "lastTransitionTime" in condition else ""
    yield f"{condition['type']} is {condition['status']} ({condition['reason']}){since}"
    if condition["message"]:
        yield f"  {condition['message']}"


def _pool(name: str, pool: Mapping[str, Any]) -> Iterator[str]:
    each = f", {ranks} ranks each" if (ranks := pool.get("ranks", 1)) > 1 else ""
    yield f"{name}: {pool['ready']} of {pool['replicas']} ready, {pool['desired']} desired{each}"
    if "cappedBy" in pool:
        yield f"  more or fewer were asked for; {pool['cappedBy']} does not allow them"
    if "failure" in pool:
        yield f"  revision {pool['failedRevision']} failed ({pool['failureReason']}): {pool['failure']}"


def _worker(pod: Mapping[str, Any]) -> tuple[str, ...]:
    restarts = f"{pod['restarts']} restart{'' if pod['restarts'] == 1 else 's'}"
    node = f"on {pod['node']}" if pod["node"] else ""
    return pod["name"], restarts, f"since {pod['created']}", node, state(pod)


def _paused(scaling: Mapping[str, Any]) -> Iterator[str]:
    if "pausedUntil" in scaling:
        yield f"paused until {scaling['pausedUntil']}"


def _event(event: Mapping[str, Any]) -> tuple[str, ...]:
    times = f" ({event['count']} times)" if event["count"] > 1 else ""
    return event["time"], event["type"], event["reason"], event["message"] + times
