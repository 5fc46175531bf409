"""Rules of containers' requests and limits: CPUs, memory and devices."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

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


def _is_whole(kind: str) -> str:
    """Returns CEL that is true for a whole number of GPUs; `isInteger` rejects 2000m, which Kubernetes accepts."""
    amount = f"quantity(string(self.{kind}['{GPU}'])).asApproximateFloat()"
    return f"double(int({amount})) == {amount}"


def _both(resources: Resources) -> Iterator[tuple[str, Decimal, Decimal]]:
    """Yields name, request and limit of every resource that has both."""
    for name in resources.requests.keys() & resources.limits:
        yield name, quantities.quantity(resources.requests[name]), quantities.quantity(resources.limits[name])


def _compared(names: str, comparison: str) -> str:
    """Returns CEL that compares the request with the limit of every resource that has both."""
    asked, most = (f"quantity(string(self.{kind}[name]))" for kind in ("requests", "limits"))
    skipped = f"!(name in self.limits){names}"
    both = f"self.requests.all(name, {skipped} || {asked}.compareTo({most}) {comparison} 0)"
    return f"!has(self.requests) || !has(self.limits) || {both}"


def _is_memory(amounts: Mapping[str, str]) -> bool:
    return "memory" not in amounts or quantities.quantity(amounts["memory"]) >= quantities.LEAST_MEMORY


def _amounts_rules(at: str, kind: str) -> tuple[Rule, ...]:
    """Returns the rules of requests or of limits."""
    return (
        Rule(
            at=at,
            field=kind,
            message="memory must be at least 1Mi (512m is half a byte)",
            holds=lambda resources: _is_memory(getattr(resources, kind)),
            cel=f"!has(self.{kind}) || !('memory' in self.{kind}) || "
            f"quantity(string(self.{kind}['memory'])).compareTo(quantity('1Mi')) >= 0",
        ),
        Rule(
            at=at,
            field=kind,
            message="names must be cpu, memory, ephemeral-storage, hugepages-SIZE or like nvidia.com/gpu",
            holds=lambda resources: all(_RESOURCE.fullmatch(name) for name in getattr(resources, kind)),
            cel=f"!has(self.{kind}) || self.{kind}.all(name, name.matches('^{_RESOURCE.pattern}$'))",
        ),
        Rule(
            at=at,
            field=kind,
            message=f"{GPU} must be a whole number",
            holds=lambda resources: quantities.quantity(getattr(resources, kind).get(GPU, "0")) % 1 == 0,
            cel=f"!has(self.{kind}) || !('{GPU}' in self.{kind}) || {_is_whole(kind)}",
        ),
    )


def _resource_rules(at: str) -> tuple[Rule, ...]:
    return (
        *(rule for kind in ("requests", "limits") for rule in _amounts_rules(at, kind)),
        Rule(
            at=at,
            field="limits",
            message="must not be below requests",
            holds=lambda resources: all(asked <= most for _, asked, most in _both(resources)),
            cel=_compared("", "<="),
        ),
        Rule(
            at=at,
            field="limits",
            message="of devices must be the same as requested",
            holds=lambda resources: all(asked == most for name, asked, most in _both(resources) if "/" in name),
            cel=_compared(" || !name.contains('/')", "=="),
        ),
        Rule(
            at=at,
            field="requests",
            message=f"cpu must be greater than 0 and at most {MAX_CPUS}",
            holds=lambda resources: 0 < quantities.quantity(resources.requests.get("cpu", "1")) <= MAX_CPUS,
            cel="!has(self.requests) || !('cpu' in self.requests) || "
            "(quantity(string(self.requests['cpu'])).isGreaterThan(quantity('0')) && "
            f"quantity(string(self.requests['cpu'])).compareTo(quantity('{MAX_CPUS}')) <= 0)",
        ),
    )


RULES = tuple(rule for at in _RESOURCES for rule in _resource_rules(at))
