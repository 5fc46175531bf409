"""Assembles the local cluster: a store whose pods are processes. `open_cluster` opens one."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from legato_operator.clock import Clock
from legato_operator.local.kubelet import Kubelet
from legato_operator.local.logs import Logs
from legato_operator.local.pod import Surroundings
from legato_operator.local.settings import LocalSettings
from legato_operator.local.store import Store


@dataclass(frozen=True)
class LocalCluster:
    """`store` is the Cluster; `failed` only ends with the error that stopped the kubelet."""

    store: Store
    kill_all: Callable[[], None]
    failed: "asyncio.Task[None]"


@contextlib.asynccontextmanager
async def open_cluster(
    logs: Logs,
    clock: Clock,
    environment: Mapping[str, str],
    settings: LocalSettings,
    listener: socket.socket | None = None,
    gpus: tuple[str, ...] = (),
) -> AsyncIterator[LocalCluster]:
    """Yields a running local cluster. On exit every process is killed: delete services first for a graceful end.

    `listener` is the listening socket that gateways inherit. Its opener closes it, after which no gateway can start.
    `gpus` are this machine's GPUs in the notation of CUDA_VISIBLE_DEVICES.
    """
    store = Store(clock.timestamp, graceful=frozenset({"Pod"}))
    with tempfile.TemporaryDirectory(prefix="legato-") as folder:
        async with aiohttp.ClientSession() as session:
            around = Surroundings(store, session, clock, logs, settings, environment, Path(folder), listener, gpus)
            kubelet = Kubelet(around)
            running = asyncio.create_task(kubelet.run())
            try:
                yield LocalCluster(store, kubelet.kill_all, running)
            finally:
                kubelet.kill_all()
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
