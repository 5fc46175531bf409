"""Tokens served to tenants, by the gateway that sent their requests: what each gateway is told of the others."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from legato_protocol.load import TenantService


class _Service:
    __slots__ = ("output", "prompt")

    def __init__(self) -> None:
        self.prompt = self.output = 0


class ServedTokens:
    """What was served since gateways were last told, all of them at once. `gateway` is the server's number for a
    connection, so a gateway that connects again is another one, and is told of nothing from before it did."""

    def __init__(self) -> None:
        self._served: defaultdict[int, defaultdict[str, _Service]] = defaultdict(lambda: defaultdict(_Service))
        self._told: frozenset[int] = frozenset()

    def prompt(self, gateway: int, tenant: str, tokens: int) -> None:
        """Tokens of prompts were computed."""
        self._served[gateway][tenant].prompt += tokens

    def output(self, gateway: int, tenant: str, tokens: int) -> None:
        """Tokens of answers were emitted."""
        self._served[gateway][tenant].output += tokens

    def take(self, gateways: Collection[int]) -> dict[int, dict[str, TenantService]]:
        """For each of `gateways`, what tenants were served through the others; nothing for those that were not there
        the last time."""
        told = {each: self._by_others(each) for each in gateways if each in self._told}
        self._served.clear()
        self._told = frozenset(gateways)
        return {gateway: served for gateway, served in told.items() if served}

    def _by_others(self, gateway: int) -> dict[str, TenantService]:
        sums: defaultdict[str, _Service] = defaultdict(_Service)
        for tenant, service in self._of_others(gateway):
            sums[tenant].prompt += service.prompt
            sums[tenant].output += service.output
        return {tenant: TenantService(each.prompt, each.output) for tenant, each in sums.items()}

    def _of_others(self, gateway: int) -> Iterator[tuple[str, _Service]]:
        tenants: Mapping[str, _Service]
        for other, tenants in self._served.items():
            if other != gateway:
                yield from tenants.items()
