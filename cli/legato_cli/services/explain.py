"""`legato explain scaling`: explains the sizes of a running service's pools, with the arithmetic."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import asking, options
from legato_protocol.settings import flags

HELP = "show what the autoscaler decided, and from which numbers"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    flags.option(parser, "topic", kind=flags.one_of("TOPIC", ("scaling",)), help="scaling")
    options.add_service(parser)
    flags.option(parser, "--records", kind=flags.whole("COUNT", 0, 20), default=5, help="how many changes to show")


def run(args: argparse.Namespace) -> int:
    """Exit code 1: the service cannot be asked, or nothing was decided."""
    print("\n".join(lines(read(args.namespace, args.service), args.records)))
    return 0


def read(namespace: str | None, service: str | None) -> Mapping[str, Any]:
    """Returns `status.scaling` of a service on Kubernetes; without a namespace, of `legato up`.

    Raises ServiceUnavailable, also if nothing was decided.
    """
    scaling: Mapping[str, Any] | None = asking.ask(namespace, service, {"do": "status"})["status"].get("scaling")
    if not scaling:
        raise ServiceUnavailable("nothing was decided: scaling.mode must be Managed or Advisory, and a pass takes 2 s")
    return scaling


def lines(scaling: Mapping[str, Any], records: int) -> Iterator[str]:
    """Yields `status.scaling` as text: each pool with its terms, then the last changes."""
    if "pausedUntil" in scaling:
        yield f"paused until {scaling['pausedUntil']}"
    for name, pool in scaling["pools"].items():
        yield from _pool(name, pool)
    last = list(changes(scaling, records))
    if last:
        yield "changes, the oldest first:"
    yield from (f"  {line}" for line in last)


def changes(scaling: Mapping[str, Any], records: int) -> Iterator[str]:
    """Yields a line for each of the last changes, the oldest first."""
    for change in list(scaling.get("records", ()))[-records:] if records else []:
        capped = f", capped by {change['cappedBy']}" if change["cappedBy"] else ""
        size = f"{change['pool']} {change['current']} -> {change['recommended']}{_allowed(change)}"
        yield f"{change['time']}  {size}  {change['reason']}: {change['needed']} needed{capped}"


def _allowed(decision: Mapping[str, Any]) -> str:
    """Returns the effect of limits over all pools together, which can raise or lower a size."""
    if "allowed" not in decision:
        return ""
    return f", {'limited' if decision['allowed'] < decision['recommended'] else 'raised'} to {decision['allowed']}"


def _pool(name: str, pool: Mapping[str, Any]) -> Iterator[str]:
    capped = f", capped by {pool['cappedBy']}" if pool["cappedBy"] else ""
    size = f"{pool['current']} -> {pool['recommended']}{_allowed(pool)}"
    yield f"{name}: {size} ({pool['reason']}{capped}), decided {pool['time']}"
    for term in sorted(pool["terms"], key=lambda term: -float(term["workers"])):
        yield f"  {term['reason']}: {term['workers']:.2f} workers"
        if term["numbers"]:
            yield f"    {term['equation']}"
            yield f"    {', '.join(f'{key} {value:g}' for key, value in term['numbers'].items())}"
    yield f"  needed {pool['needed']}, highest of the window {pool['highest']}"
    for missing in pool["missing"]:
        yield f"  not known: {missing}"
    for unmet in pool.get("unmet", ()):
        yield f"  {unmet}"
    if pool["change"]:
        yield f"  {pool['change']}"
