"""A service of `legato up`: read through its admin socket, or by `legato up` itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from legato_cli.local import admin
from legato_cli.ui.target import NoTarget, UITarget, from_message, read
from legato_operator.cluster import Cluster, Ref
from legato_operator.errors import ClusterError


@contextlib.asynccontextmanager
async def source(service: str | None) -> AsyncIterator["LocalSource"]:
    """Opens a source for the named service, or the only one that runs."""
    yield LocalSource(service)


class LocalSource:
    """A `TargetSource`."""

    def __init__(self, service: str | None) -> None:
        self._service = service

    async def find(self) -> UITarget:
        try:
            answer = await asyncio.to_thread(admin.ask, self._service, {"do": "ui"})
        except (admin.NotRunning, admin.CannotListen, OSError) as error:
            raise NoTarget(str(error)) from None
        if "error" in answer:
            raise NoTarget(answer["error"])
        return from_message(answer["target"])


class OwnSource:
    """A `TargetSource` inside of `legato up`."""

    def __init__(self, cluster: Cluster, ref: Ref) -> None:
        self._cluster = cluster
        self._ref = ref

    async def find(self) -> UITarget:
        try:
            return await read(self._cluster, self._ref)
        except ClusterError as error:
            raise NoTarget(str(error)) from None
