"""Sources of rounds of signals: a running `legato up`, or a service on Kubernetes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp

from legato_cli.local import admin
from legato_cli.recording.reader import RoundReader
from legato_cli.ui import kubernetes
from legato_cli.ui.target import NoTarget
from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref
from legato_operator.errors import ClusterError, ManifestError
from legato_operator.kubernetes.client import connection
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.observing.gateway_api import HttpGateways
from legato_protocol import names
from legato_simulator.replay import signal_round
from legato_simulator.replay.signal_round import SignalRound


class RoundSource(Protocol):
    """A source of one service's rounds."""

    async def round(self) -> SignalRound:
        """Returns the current round. Raises NoTarget."""
        ...


class LocalRounds:
    """Asks a running `legato up`, which reads rounds itself."""

    def __init__(self, service: str | None) -> None:
        self._service = service

    async def round(self) -> SignalRound:
        try:
            answer = await asyncio.to_thread(admin.ask, self._service, {"do": "signals"})
        except (admin.NotRunning, admin.CannotListen, OSError) as error:
            raise NoTarget(str(error)) from None
        if "error" in answer:
            raise NoTarget(answer["error"])
        return signal_round.decode(answer["round"].encode())


class KubernetesRounds:
    """Reads rounds with the user's kubeconfig, as `legato ui` does."""

    def __init__(self, targets: kubernetes.KubernetesSource, reader: RoundReader) -> None:
        self._targets, self._reader = targets, reader

    async def round(self) -> SignalRound:
        target = await self._targets.find()
        try:
            return await self._reader.read({gateway.name: gateway.address for gateway in target.gateways})
        except (ClusterError, ManifestError) as error:
            raise NoTarget(str(error)) from None


@contextlib.asynccontextmanager
async def on_kubernetes(namespace: str, service: str) -> AsyncIterator[KubernetesRounds]:
    """Opens a service on Kubernetes. Raises NoTarget without a kubeconfig."""
    ref = Ref(names.INFERENCE_SERVICE, namespace, service)
    async with kubernetes.source(namespace, service) as targets, aiohttp.ClientSession() as session:
        cluster = KubernetesCluster(connection.client(connection.load()))
        try:
            yield KubernetesRounds(targets, RoundReader(cluster, ref, HttpGateways(session), SystemClock()))
        finally:
            cluster.close()


@contextlib.asynccontextmanager
async def of_legato_up(service: str | None) -> AsyncIterator[LocalRounds]:
    """Opens the named service of `legato up`, or the only one that runs."""
    yield LocalRounds(service)
