"""Rules over several fields of a spec: one table, checked in Python and by the API server.

Each entry states a rule twice: as a predicate for manifests that no API server has seen, and in CEL for the CRD.
"""

from collections.abc import Iterable

from legato_operator.api.resources import InferenceService, Spec
from legato_operator.api.rules import compute, gateway, model, pools, rdma
from legato_operator.api.rules.rule import Rule, value_at

RULES = (*model.RULES, *gateway.RULES, *pools.RULES, *rdma.RULES, *compute.RULES)


def problems(spec: Spec, table: Iterable[Rule] = RULES) -> list[tuple[str, str]]:
    """Returns (path, message) of every rule that a spec breaks."""
    given = [(rule, value_at(spec, rule.at.partition(".")[2])) for rule in table if rule.at]
    return [(rule.path, rule.explain(part)) for rule, part in given if part is not None and not rule.holds(part)]


def problems_of_service(service: InferenceService) -> list[tuple[str, str]]:
    """Returns (path, message) of every rule that a service breaks, including rules about its name."""
    broken = [(rule.path, rule.explain(service)) for rule in RULES if not rule.at and not rule.holds(service)]
    return [*problems(service.spec), *broken]
