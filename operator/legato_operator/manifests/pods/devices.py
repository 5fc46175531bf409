"""Counts the devices of a pod, including GPUs: its requests for resources with a domain. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.api import quantities


def requested(spec: Mapping[str, Any]) -> dict[str, int]:
    """Returns the devices by resource name, as the scheduler counts: the sum of all containers, or an init container's
    request if that is larger."""
    running: Counter[str] = Counter()
    for container in spec.get("containers", ()):
        running.update(_requested(container))
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy") == "Always":
            running.update(_requested(container))
        else:
            running |= _requested(container)
    return dict(running)


def gpus(devices: Mapping[str, int], names: Sequence[str]) -> int:
    """Returns the number of GPUs among the devices."""
    return sum(devices.get(name, 0) for name in names)


def _requested(container: Mapping[str, Any]) -> Counter[str]:
    resources = container.get("resources", {})
    given = {**resources.get("limits", {}), **resources.get("requests", {})}
    return Counter({name: int(quantities.quantity(str(text))) for name, text in given.items() if "/" in name})
