"""The services that are shown: one of `legato up`, read through its admin socket or by itself, or one on Kubernetes."""

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import asking
from legato_cli.ui.target import ControlTarget, TargetSource, UITarget, WorkerSource, choose_worker, from_message, read
from legato_operator.cluster import Cluster, Ref
from legato_operator.errors import ClusterError


class LocalSource:
    """The named `legato up`, or the only one that runs."""

    def __init__(self, service: str | None) -> None:
        self._service = service

    async def find(self) -> UITarget:
        return from_message((await asyncio.to_thread(asking.ask, None, self._service, {"do": "ui"}))["target"])

    async def find_worker(self, name: str | None) -> tuple[ControlTarget, str]:
        target = await self.find()
        return choose_worker(target, name), target.token


class OwnSource:
    """The service of this `legato up`."""

    def __init__(self, cluster: Cluster, ref: Ref) -> None:
        self._cluster = cluster
        self._ref = ref

    async def find(self) -> UITarget:
        try:
            return await read(self._cluster, self._ref)
        except ClusterError as error:
            raise ServiceUnavailable(str(error)) from None


class ServiceSource(TargetSource, WorkerSource, Protocol):
    """A source of a whole service, or of one worker."""


def source(namespace: str | None, service: str | None) -> AbstractAsyncContextManager[ServiceSource]:
    """Returns a source for the service on Kubernetes if there is a namespace, else for the named or only `legato up`.

    Raises ServiceUnavailable.
    """
    if namespace is None:
        return contextlib.nullcontext(LocalSource(service))
    if service is None:
        raise ServiceUnavailable(asking.NAME_REQUIRED)
    from legato_cli.ui import kubernetes

    return kubernetes.source(namespace, service)
