"""Which workers no gateway has a connection to, as gateways tell: a worker serves once one has greeted it. Pure."""

import dataclasses
from collections.abc import Iterable

from legato_operator.manifests import common
from legato_operator.observing.observed import Pod
from legato_protocol.demand import DemandReport, WorkerLink

GRACE = 10.0  # seconds: gateways connect again by themselves, and one that has just begun knows nobody yet


def judged(pods: Iterable[Pod]) -> list[Pod]:
    """These pods, each worker that is ready with why none of the gateways that tell has reached it.

    Where none tells (older ones do not), nothing is wrong with a worker.
    """
    known = list(pods)
    reports = {pod.name: pod.report for pod in known if _tells(pod.report)}
    found = ((pod, _unreached(pod, reports)) for pod in known)
    return [pod if pod.unreached == why else dataclasses.replace(pod, unreached=why) for pod, why in found]


def _tells(report: DemandReport | None) -> bool:
    """One that has just begun counts where it has connections already."""
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
