"""Rules of the gateway: its keys and certificates, its hosts, and its tenants."""

import re
from typing import Any

from legato_operator.api.rules.rule import Rule, exactly_one
from legato_operator.api.spec.gateway import GatewaySpec
from legato_protocol import names

_ADDRESS = re.compile(r"[0-9]+([.][0-9]+)*")


def _tenant_rule(field: str, attribute: str) -> Rule:
    def holds(gateway: GatewaySpec) -> bool:
        named = getattr(gateway, attribute).keys() - {"*"}
        return not named or bool(gateway.api_keys or gateway.trusted_proxies)

    return Rule(
        at="spec.gateway",
        field=field,
        message='needs apiKeys or trustedProxies for tenants other than "*": without them, tenants are addresses',
        holds=holds,
        cel=f"!has(self.{field}) || self.{field}.all(tenant, tenant == '*') || "
        "has(self.apiKeys) || (has(self.trustedProxies) && self.trustedProxies.size() > 0)",
    )


def _host_rules(part: str, field: str) -> tuple[Rule, ...]:
    """Returns the rules of a route; as in the Gateway API, an address is not a host name."""
    at = f"spec.gateway.{part}"
    given = f"!has(self.{field}) || self.{field}" if field == "hostnames" else f"self.{field}"

    def hosts(part: Any) -> list[str]:
        return list(getattr(part, field))

    return (
        Rule(
            at=at,
            field=field,
            message="must be names of hosts, not addresses",
            holds=lambda part: not any(_ADDRESS.fullmatch(host) for host in hosts(part)),
            cel=f"{given}.all(host, !host.matches('^{_ADDRESS.pattern}$'))",
        ),
        Rule(
            at=at,
            field=field,
            message="must not name a host twice",
            holds=lambda part: len(set(hosts(part))) == len(hosts(part)),
            cel=f"{given}.all(host, self.{field}.exists_one(other, other == host))",
        ),
        Rule(
            at=at,
            field="annotations",
            message=f"must not be {names.API_GROUP}/'s, which are the operator's",
            holds=lambda part: not any(key.startswith(f"{names.API_GROUP}/") for key in part.annotations),
            cel=f"!has(self.annotations) || self.annotations.all(key, !key.startsWith('{names.API_GROUP}/'))",
        ),
    )


RULES = (
    exactly_one("spec.gateway", "apiKeys", "secret", "path"),
    exactly_one("spec.gateway", "tls", "secret", "path"),
    *_host_rules("httpRoute", "hostnames"),
    *_host_rules("ingress", "hosts"),
    Rule(
        at="spec.gateway.limits",
        field="maxPendingBodiesSize",
        message="must be at least twice maxBodySize, so that the largest body fits",
        holds=lambda limits: limits.max_pending_bodies_size >= 2 * limits.max_body_size,
        cel="quantity(string(self.maxPendingBodiesSize)).compareTo(quantity(string(self.maxBodySize))"
        ".add(quantity(string(self.maxBodySize)))) >= 0",
    ),
    Rule(
        at="spec.gateway",
        field="responseStore",
        message="only allowed with replicas: 1, as each gateway stores its own responses",
        holds=lambda gateway: gateway.response_store is None or gateway.replicas == 1,
        cel="!has(self.responseStore) || self.replicas == 1",
    ),
    _tenant_rule("tenantTokensPerMinute", "tenant_tokens_per_minute"),
    _tenant_rule("tenantMaxOutputTokens", "tenant_max_output_tokens"),
)
