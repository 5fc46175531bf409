"""Computed tokens by tenant. Clients choose the names of tenants, so their number has a limit here."""

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
        """Adds the tokens that a step computed for each tenant."""
        named = self._named
        for tenant, tokens in served.items():
            name = ADDRESSES if tenant.startswith(names.ADDRESS_TENANT) else tenant
            named[name] = named.pop(name, 0) + tokens
        while len(named) > MOST_TENANTS:
            self._others += named.pop(next(iter(named)))

    def counts(self) -> dict[str, int]:
        """Tokens of at most MOST_TENANTS tenants, and of OTHERS. A tenant that returns from there begins at 0."""
        return {**self._named, OTHERS: self._named.get(OTHERS, 0) + self._others} if self._others else dict(self._named)
