"""Collects the recent requests in the state of a service's gateways while a load runs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import state
from legato_cli.ui import sources

PAUSE = 1.0  # seconds between two polls: a gateway keeps its last 256 requests
Route = Mapping[str, Any]  # an entry of `requests` in `/state`
Read = Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]  # raises ServiceUnavailable


def of_service(namespace: str | None, service: str | None) -> "StateWatch":
    """Returns a watch for a service on Kubernetes, or for one of `legato up`."""

    async def read() -> Sequence[Mapping[str, Any]]:
        return await state.read(sources.source(namespace, service))

    return StateWatch(read)


@dataclass(slots=True)
class StateWatch:
    """Collects routes by request id, with the last stage before the end. `unknown` says why the last poll failed."""

    read: Read
    routes: dict[str, Route] = field(default_factory=dict)
    unknown: str = ""

    async def run(self) -> None:
        """Polls until it is cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(PAUSE)

    async def poll(self) -> None:
        """Polls once."""
        try:
            states = await self.read()
        except ServiceUnavailable as error:
            self.unknown = str(error)
            return
        self.unknown = ""
        for route in (route for each in states for route in each.get("requests", ())):
            last = self.routes.get(route["id"], route) if route["stage"] == "ended" else route
            self.routes[route["id"]] = {**route, "stage": last["stage"]}
