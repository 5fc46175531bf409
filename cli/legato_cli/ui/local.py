"""A service of `legato up`: read through its admin socket, or by `legato up` itself."""

import asyncio

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import asking
from legato_cli.ui.target import UITarget, from_message, read
from legato_operator.cluster import Cluster, Ref
from legato_operator.errors import ClusterError


class LocalSource:
    """A `TargetSource` for the named service, or the only one that runs."""

    def __init__(self, service: str | None) -> None:
        self._service = service

    async def find(self) -> UITarget:
        return from_message((await asyncio.to_thread(asking.ask, None, self._service, {"do": "ui"}))["target"])


class OwnSource:
    """A `TargetSource` inside of `legato up`."""

    def __init__(self, cluster: Cluster, ref: Ref) -> None:
        self._cluster = cluster
        self._ref = ref

    async def find(self) -> UITarget:
        try:
            return await read(self._cluster, self._ref)
        except ClusterError as error:
            raise ServiceUnavailable(str(error)) from None
