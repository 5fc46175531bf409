"""Tokens computed, by tenant. Tenants are what clients call themselves, so there is no end to their names."""

from collections.abc import Mapping

from legato_protocol import names

MOST_TENANTS = 32
ADDRESSES = "(addresses)"
OTHERS = "(others)"


class TenantTokens:
    """Counts by tenant: the tenants served last by name, all addresses together, and all others together."""

    def __init__(self) -> None:
        self._named: dict[str, int] = {}  # least recently served first
        self._others = 0

    def add(self, served: Mapping[str, int]) -> None:
        """A step computed so many tokens for each of these."""
        named = self._named
        for tenant, tokens in served.items():
            name = ADDRESSES if tenant.startswith(names.ADDRESS_TENANT) else tenant
            named[name] = named.pop(name, 0) + tokens
        while len(named) > MOST_TENANTS:
            self._others += named.pop(next(iter(named)))

    def counts(self) -> dict[str, int]:
        """At most MOST_TENANTS names, and OTHERS where some were served before those. A tenant that comes back from
        there begins at 0."""
        return {**self._named, OTHERS: self._named.get(OTHERS, 0) + self._others} if self._others else dict(self._named)
