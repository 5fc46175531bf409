"""The local cluster put together: a store whose pods are processes. `open_cluster` is how to get one."""

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
    """`store` is the Cluster; `failed` ends only with the fault that stopped the kubelet."""

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
    """A running local cluster. When left, every process is killed: delete services first for a gentle end.

    `listener` is the listening socket that gateways inherit. Who opened it closes it: pods started later are told so.
    `gpus` are those of this machine, as CUDA_VISIBLE_DEVICES names them.
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
