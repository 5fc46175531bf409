"""Rounds of signals of a running service, reported by its `legato up`, or read from Kubernetes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

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

ReadRound = Callable[[], Awaitable[SignalRound]]  # the current one; raises ServiceUnavailable


async def from_legato_up(service: str | None) -> SignalRound:
    """Asks the named or only running `legato up`. Raises ServiceUnavailable."""
    answer = await asyncio.to_thread(asking.ask, None, service, {"do": "signals"})
    return signal_round.decode(answer["round"].encode())


@contextlib.asynccontextmanager
async def on_kubernetes(namespace: str, service: str) -> AsyncIterator[ReadRound]:
    """Reads with the user's kubeconfig, as `legato ui` does. Raises ServiceUnavailable without one."""
    ref = Ref(names.INFERENCE_SERVICE, namespace, service)
    async with kubernetes.source(namespace, service) as targets, aiohttp.ClientSession() as session:
        reader = RoundReader(targets.cluster, ref, HttpGateways(session), SystemClock())

        async def read() -> SignalRound:
            target = await targets.find()
            try:
                return await reader.read({gateway.name: gateway.address for gateway in target.gateways})
            except (ClusterError, ManifestError) as error:
                raise ServiceUnavailable(str(error)) from None

        yield read
