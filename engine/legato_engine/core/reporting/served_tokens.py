"""Tokens served to tenants by gateway, so that each gateway learns what tenants used through the others."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from legato_protocol.wire.load import TenantService


class _Service:
    __slots__ = ("output", "prompt")

    def __init__(self) -> None:
        self.prompt = self.output = 0


class ServedTokens:
    """Tokens served since the last report, which goes to all gateways together.

    `gateway` is the server's number of a connection: after a reconnection, a gateway is a new one, which gets nothing
    from before.
    """

    def __init__(self) -> None:
        self._served: defaultdict[int, defaultdict[str, _Service]] = defaultdict(lambda: defaultdict(_Service))
        self._known: frozenset[int] = frozenset()

    def count_prompt(self, gateway: int, tenant: str, tokens: int) -> None:
        """Counts computed prompt tokens."""
        self._served[gateway][tenant].prompt += tokens

    def count_output(self, gateway: int, tenant: str, tokens: int) -> None:
        """Counts emitted output tokens."""
        self._served[gateway][tenant].output += tokens

    def take(self, gateways: Collection[int]) -> dict[int, dict[str, TenantService]]:
        """Returns for each gateway what tenants were served through the others, and begins a new period.

        Gateways that connected since the last call get nothing.
        """
        reports = {each: self._sum_others(each) for each in gateways if each in self._known}
        self._served.clear()
        self._known = frozenset(gateways)
        return {gateway: served for gateway, served in reports.items() if served}

    def _sum_others(self, gateway: int) -> dict[str, TenantService]:
        sums: defaultdict[str, _Service] = defaultdict(_Service)
        for tenant, service in self._others(gateway):
            sums[tenant].prompt += service.prompt
            sums[tenant].output += service.output
        return {tenant: TenantService(each.prompt, each.output) for tenant, each in sums.items()}

    def _others(self, gateway: int) -> Iterator[tuple[str, _Service]]:
        tenants: Mapping[str, _Service]
        for other, tenants in self._served.items():
            if other != gateway:
                yield from tenants.items()
