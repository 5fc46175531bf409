"""Rules of workers' RDMA resources."""

from legato_operator.api import roles
from legato_operator.api.resources import Spec
from legato_operator.api.rules.rule import Rule
from legato_protocol.settings import sizes

_TRANSPORTS = ("Auto", "RDMA")
_PAGES = "quantity(string(self.memory)).asApproximateFloat() / quantity(self.pageSize).asApproximateFloat()"  # in CEL


def _is_requested_once(spec: Spec, role: str) -> bool:
    rdma, resources = spec.transfer.rdma, roles.pool(spec, role).resources
    if rdma is None:
        return True
    requested = {rdma.resource, *([rdma.huge_pages.resource] if rdma.huge_pages else [])}
    return not requested & (resources.requests.keys() | resources.limits.keys())


def _not_among(role: str, kind: str) -> str:
    """Returns CEL that is true if the pool's resources do not name the RDMA resources."""
    given = f"self.{role}.resources.{kind}"
    pages = "('hugepages-' + self.transfer.rdma.hugePages.pageSize)"
    other_pages = f"!has(self.transfer.rdma.hugePages) || !({pages} in {given})"
    return f"(!has({given}) || (!(self.transfer.rdma.resource in {given}) && ({other_pages})))"


def _role_rule(role: str) -> Rule:
    return Rule(
        at="spec",
        field=f"{role}.resources",
        message="must not name what transfer.rdma requests",
        holds=lambda spec: _is_requested_once(spec, role),
        cel=f"!has(self.transfer.rdma) || ({_not_among(role, 'requests')} && {_not_among(role, 'limits')})",
    )


RULES = (
    Rule(
        at="spec.transfer",
        field="rdma",
        message="only allowed with transport RDMA or Auto",
        holds=lambda transfer: transfer.rdma is None or transfer.transport in _TRANSPORTS,
        cel=f"!has(self.rdma) || self.transport in {list(_TRANSPORTS)}",
    ),
    Rule(
        at="spec.transfer.rdma.hugePages",
        field="memory",
        message="must be a multiple of pageSize",
        holds=lambda pages: pages.memory % sizes.parse(pages.page_size) == 0,
        cel=f"double(int({_PAGES})) == {_PAGES}",
    ),
    *(_role_rule(role) for role in roles.BOTH),
)
