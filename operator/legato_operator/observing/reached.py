"""Finds ready workers to which no gateway reports a connection: a worker serves once a gateway is connected. Pure."""

import dataclasses
from collections.abc import Iterable

from legato_operator.manifests import common
from legato_operator.observing.observed import Pod
from legato_protocol.wire.demand import DemandReport, WorkerLink

GRACE = 10.0  # seconds: gateways reconnect by themselves, and a new gateway has no connections yet


def mark_unreached(pods: Iterable[Pod]) -> list[Pod]:
    """Returns the pods; each ready worker without a connection has the reasons that gateways report.

    If no gateway reports connections, as older ones do not, no worker is marked.
    """
    known = list(pods)
    reports = {pod.name: pod.report for pod in known if _counts(pod.report)}
    reasons = ((pod, _unreached(pod, reports)) for pod in known)
    return [pod if pod.unreached == why else dataclasses.replace(pod, unreached=why) for pod, why in reasons]


def _counts(report: DemandReport | None) -> bool:
    """True if a gateway's report of connections counts; a new gateway's only counts once it has a connection."""
    if report is None or report.links is None:
        return False
    return report.uptime >= GRACE or any(link.connected for link in report.links)


def _unreached(pod: Pod, reports: dict[str, DemandReport | None]) -> str:
    if pod.pool == common.GATEWAY or not pod.ready:
        return ""
    problems = []
    for gateway, report in reports.items():
        link = next((link for link in (report.links if report else None) or () if link.worker == pod.name), None)
        if link is not None and _is_reached(link):
            return ""
        problems.append(f"{gateway}: {link.problem or 'not connected yet'}" if link else f"{gateway}: not listed there")
    return "; ".join(problems)


def _is_reached(link: WorkerLink) -> bool:
    return link.connected or (link.lost_for is not None and link.lost_for < GRACE)
