"""Sources of rounds of signals: a running `legato up`, or a service on Kubernetes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp

from legato_cli.errors import ServiceUnavailable
from legato_cli.recording.reader import RoundReader
from legato_cli.services import asking
from legato_cli.ui import kubernetes
from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref
from legato_operator.errors import ClusterError, ManifestError
from legato_operator.observing.gateway_api import HttpGateways
from legato_protocol import names
from legato_simulator.replay import signal_round
from legato_simulator.replay.signal_round import SignalRound


class RoundSource(Protocol):
    """A source of one service's rounds."""

    async def round(self) -> SignalRound:
        """Returns the current round. Raises ServiceUnavailable."""
        ...


class LocalRounds:
    """Asks the named or only running `legato up`, which reads rounds itself."""

    def __init__(self, service: str | None) -> None:
        self._service = service

    async def round(self) -> SignalRound:
        answer = await asyncio.to_thread(asking.ask, None, self._service, {"do": "signals"})
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
            raise ServiceUnavailable(str(error)) from None


@contextlib.asynccontextmanager
async def on_kubernetes(namespace: str, service: str) -> AsyncIterator[KubernetesRounds]:
    """Opens a service on Kubernetes. Raises ServiceUnavailable without a kubeconfig."""
    ref = Ref(names.INFERENCE_SERVICE, namespace, service)
    async with kubernetes.source(namespace, service) as targets, aiohttp.ClientSession() as session:
        yield KubernetesRounds(targets, RoundReader(targets.cluster, ref, HttpGateways(session), SystemClock()))
