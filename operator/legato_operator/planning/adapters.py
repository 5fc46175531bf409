"""The condition AdaptersReady, from the adapters that a service's processes report. Pure."""

from collections.abc import Mapping, Sequence

from legato_operator.api import conditions
from legato_operator.api.conditions import Condition
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import adapters
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning.rollout.revisions import Revisions

RECHECK_AFTER = 2.0  # seconds: no event says that a process has read the list


def condition(observed: Observed, revisions: Mapping[str, Revisions], placement: PodPlacement) -> Condition | None:
    """Returns the condition, or None if the service has no adapters.

    Only workers of the desired revision count: older ones may lack volumes.
    """
    if not adapters.are_listed(observed.service):
        return None
    kind, desired = conditions.ADAPTERS_READY, adapters.list_id(observed.service, placement)
    pods = [pod for pod in observed.pods if pod.ready and not pod.on_its_way_out]
    workers = [pod for pod in pods if pod.pool != common.GATEWAY and pod.recent_state is not None]
    workers = [pod for pod in workers if pod.revision == revisions[pod.pool].desired_name]
    if not workers:
        return Condition(kind, None, conditions.UNKNOWN, "no ready worker has reported its adapters yet")
    if problems := _problems(observed, workers, desired):
        return Condition(kind, False, conditions.ADAPTER_REFUSED, problems)
    gateways = [pod for pod in pods if pod.report is not None and pod.report.adapters is not None]
    outdated = [pod.name for pod in (*workers, *gateways) if _list(pod) != desired]
    if outdated:
        text = f"{', '.join(outdated)} {'has' if len(outdated) == 1 else 'have'} not read the new list yet"
        return Condition(kind, False, conditions.ADAPTERS_PENDING, text)
    return Condition(kind, True, conditions.ALL_READY, f"{len(observed.service.spec.model.adapters)} served")


def _list(pod: Pod) -> str:
    """Returns the id of the list that a pod has read."""
    if pod.report is not None:
        return pod.report.adapters or ""
    state = pod.recent_state
    return state.adapters.list if state is not None and state.adapters is not None else ""


def _problems(observed: Observed, workers: Sequence[Pod], desired: str) -> str:
    """Returns the problems of workers that have read the list, each with its path in the manifest."""
    problems: dict[str, str] = {}
    for pod in workers:
        state = pod.recent_state
        if state is not None and state.adapters is not None and _list(pod) == desired:
            problems |= {name: f"{problem} ({pod.name})" for name, problem in state.adapters.problems.items()}
    listed = enumerate(observed.service.spec.model.adapters)
    failed = ((f"spec.model.adapters.{number}", each.name) for number, each in listed if each.name in problems)
    return "; ".join(f"{path}: {name}: {problems[name]}" for path, name in failed)
