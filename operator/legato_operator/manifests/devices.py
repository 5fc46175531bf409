"""Which devices a pod holds, GPUs among them: what its spec requests of resources that have a domain. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.api import quantities


def of(spec: Mapping[str, Any]) -> dict[str, int]:
    """By resource name, as the scheduler counts: containers together, or one that only runs before them alone."""
    running: Counter[str] = Counter()
    for container in spec.get("containers", ()):
        running.update(_requested(container))
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy") == "Always":
            running.update(_requested(container))
        else:
            running |= _requested(container)
    return dict(running)


def gpus(held: Mapping[str, int], names: Sequence[str]) -> int:
    """How many of these devices are GPUs."""
    return sum(held.get(name, 0) for name in names)


def _requested(container: Mapping[str, Any]) -> Counter[str]:
    resources = container.get("resources", {})
    given = {**resources.get("limits", {}), **resources.get("requests", {})}
    return Counter({name: int(quantities.quantity(str(text))) for name, text in given.items() if "/" in name})
