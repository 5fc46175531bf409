"""Rules of containers' requests and limits: CPUs, memory and devices."""

import re
from collections.abc import Mapping

from legato_operator.api import quantities
from legato_operator.api.quantities import GPU
from legato_operator.api.rules.rule import Rule
from legato_operator.api.spec.compute_resources import Resources

MAX_CPUS = 1024  # of one worker
_RESOURCE = re.compile(f"(cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i|{quantities.DEVICE})")
_RESOURCES = (
    "spec.prefill.resources",
    "spec.decode.resources",
    "spec.gateway.resources",
    "spec.model.source.huggingFace.resources",
)


def _whole_gpus(amounts: Mapping[str, str]) -> bool:
    amount = quantities.quantity(amounts.get(GPU, "0"))
    return amount == int(amount)


def _is_whole(kind: str) -> str:
    """Returns CEL that is true for a whole number of GPUs; `isInteger` rejects 2000m, which Kubernetes accepts."""
    amount = f"quantity(string(self.{kind}['{GPU}'])).asApproximateFloat()"
    return f"double(int({amount})) == {amount}"


def _are_known(amounts: Mapping[str, str]) -> bool:
    return all(_RESOURCE.fullmatch(name) for name in amounts)


def _limits_hold_requests(resources: Resources) -> bool:
    asked, most = resources.requests, resources.limits
    return all(quantities.quantity(asked[name]) <= quantities.quantity(most[name]) for name in asked.keys() & most)


def _devices_are_equal(resources: Resources) -> bool:
    asked, most = resources.requests, resources.limits
    both = [name for name in asked.keys() & most if "/" in name]
    return all(quantities.quantity(asked[name]) == quantities.quantity(most[name]) for name in both)


def _compared(names: str, comparison: str) -> str:
    """Returns CEL that compares the request with the limit of every resource that has both."""
    asked, most = (f"quantity(string(self.{kind}[name]))" for kind in ("requests", "limits"))
    skipped = f"!(name in self.limits){names}"
    both = f"self.requests.all(name, {skipped} || {asked}.compareTo({most}) {comparison} 0)"
    return f"!has(self.requests) || !has(self.limits) || {both}"


def _countable_cpus(resources: Resources) -> bool:
    return 0 < quantities.quantity(resources.requests.get("cpu", "1")) <= MAX_CPUS


def _is_memory(amounts: Mapping[str, str]) -> bool:
    return "memory" not in amounts or quantities.quantity(amounts["memory"]) >= quantities.LEAST_MEMORY


def _resource_rules(at: str) -> tuple[Rule, ...]:
    return (
        *(
            Rule(
                at=at,
                field=kind,
                message="memory must be at least 1Mi (512m is half a byte)",
                holds=lambda resources, kind=kind: _is_memory(getattr(resources, kind)),  # type: ignore[misc]
                cel=f"!has(self.{kind}) || !('memory' in self.{kind}) || "
                f"quantity(string(self.{kind}['memory'])).compareTo(quantity('1Mi')) >= 0",
            )
            for kind in ("requests", "limits")
        ),
        Rule(
            at=at,
            field="limits",
            message="must not be below requests",
            holds=_limits_hold_requests,
            cel=_compared("", "<="),
        ),
        Rule(
            at=at,
            field="limits",
            message="of devices must be the same as requested",
            holds=_devices_are_equal,
            cel=_compared(" || !name.contains('/')", "=="),
        ),
        *(
            Rule(
                at=at,
                field=kind,
                message="names must be cpu, memory, ephemeral-storage, hugepages-SIZE or like nvidia.com/gpu",
                holds=lambda resources, kind=kind: _are_known(getattr(resources, kind)),  # type: ignore[misc]
                cel=f"!has(self.{kind}) || self.{kind}.all(name, name.matches('^{_RESOURCE.pattern}$'))",
            )
            for kind in ("requests", "limits")
        ),
        *(
            Rule(
                at=at,
                field=kind,
                message=f"{GPU} must be a whole number",
                holds=lambda resources, kind=kind: _whole_gpus(getattr(resources, kind)),  # type: ignore[misc]
                cel=f"!has(self.{kind}) || !('{GPU}' in self.{kind}) || {_is_whole(kind)}",
            )
            for kind in ("requests", "limits")
        ),
        Rule(
            at=at,
            field="requests",
            message=f"cpu must be greater than 0 and at most {MAX_CPUS}",
            holds=_countable_cpus,
            cel="!has(self.requests) || !('cpu' in self.requests) || "
            "(quantity(string(self.requests['cpu'])).isGreaterThan(quantity('0')) && "
            f"quantity(string(self.requests['cpu'])).compareTo(quantity('{MAX_CPUS}')) <= 0)",
        ),
    )


RULES = tuple(rule for at in _RESOURCES for rule in _resource_rules(at))
