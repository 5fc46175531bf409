"""A service on Kubernetes, read with the user's kubeconfig. Its processes are reached by `kubectl port-forward`."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import replace

from legato_cli.errors import ServiceUnavailable
from legato_cli.ui.target import ControlTarget, UITarget, choose_worker, read
from legato_operator.cluster import Cluster, Ref
from legato_operator.errors import ClusterError, ManifestError
from legato_operator.kubernetes.client import connection
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_protocol import names

START = 15.0  # seconds that kubectl has to reach a pod
STOP = 5.0  # seconds that it has to end
MOST = 8  # gateways with a port forward
_FORWARDING = re.compile(rb"Forwarding from (127\.0\.0\.1:\d+) ")


@contextlib.asynccontextmanager
async def source(namespace: str, service: str) -> AsyncIterator["KubernetesSource"]:
    """Opens a source for a service. Raises ServiceUnavailable without a kubeconfig."""
    try:
        cluster = KubernetesCluster(connection.client(connection.load()))
    except connection.NoConnection as error:
        raise ServiceUnavailable(str(error)) from None
    targets = KubernetesSource(cluster, Ref(names.INFERENCE_SERVICE, namespace, service))
    try:
        yield targets
    finally:
        await targets.close()
        cluster.close()


class KubernetesSource:
    """A `ServiceSource`. Owns one `kubectl` for each ready gateway, or for one worker."""

    def __init__(self, cluster: Cluster, ref: Ref) -> None:
        self.cluster = cluster
        self._ref = ref
        self._forwards: dict[str, PortForward] = {}
        self._lock = asyncio.Lock()  # concurrent requests start only one forward

    async def find(self) -> UITarget:
        target = await self._read()
        async with self._lock:
            reached = await self._reach(target.gateways[:MOST])
        return replace(target, gateways=reached)

    async def find_worker(self, name: str | None) -> tuple[ControlTarget, str]:
        target = await self._read()
        async with self._lock:
            (worker,) = await self._reach((choose_worker(target, name),))
        return worker, target.token

    async def _read(self) -> UITarget:
        try:
            return await read(self.cluster, self._ref)
        except (ClusterError, ManifestError) as error:
            raise ServiceUnavailable(str(error)) from None

    async def close(self) -> None:
        """Ends all port forwards."""
        await asyncio.gather(*(forward.end() for forward in self._forwards.values()))
        self._forwards.clear()

    async def _reach(self, processes: tuple[ControlTarget, ...]) -> tuple[ControlTarget, ...]:
        wanted = {process.name: process for process in processes}
        for name, forward in list(self._forwards.items()):
            if name not in wanted or forward.ended:
                del self._forwards[name]
                await forward.end()
        failed: list[ServiceUnavailable] = []
        for name in [name for name in wanted if name not in self._forwards]:
            port = wanted[name].address.rpartition(":")[2]
            try:
                self._forwards[name] = await forward_port(self._ref.namespace, name, port)
            except ServiceUnavailable as error:
                failed.append(error)
        if failed and not self._forwards:
            raise failed[0]
        return tuple(
            replace(process, address=self._forwards[name].address)
            for name, process in wanted.items()
            if name in self._forwards
        )


class PortForward:
    """A running `kubectl port-forward`, and its local address."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, reading: "asyncio.Task[None]") -> None:
        self._process = process
        self._reading = reading
        self.address = address

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.returncode is not None

    async def end(self) -> None:
        """Ends the process."""
        self._reading.cancel()
        await _end(self._process)


async def forward_port(namespace: str, pod: str, port: str) -> PortForward:
    """Starts a port forward. Raises ServiceUnavailable if kubectl is missing or does not reach the pod in time."""
    command = ("kubectl", "--namespace", namespace, "port-forward", "--address", "127.0.0.1", f"pod/{pod}", f":{port}")
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise ServiceUnavailable(f"kubectl cannot be started: {error.strerror} (it forwards a control port)") from None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START):
            line = await process.stdout.readline()
            match = _FORWARDING.match(line)
            if match is None:
                said = (line or await process.stderr.read()).decode(errors="replace").strip()
                raise ServiceUnavailable(f"kubectl does not reach pod {pod}: {said}")
    except TimeoutError:
        await _end(process)
        raise ServiceUnavailable(f"kubectl did not reach pod {pod} within {START:g} s") from None
    except BaseException:
        await _end(process)
        raise
    reading = asyncio.create_task(_drain(process.stdout, process.stderr))
    return PortForward(process, match[1].decode(), reading)


async def _drain(*streams: asyncio.StreamReader) -> None:
    """Reads and drops the output of a process, which would block on a full pipe."""

    async def read_all(stream: asyncio.StreamReader) -> None:
        while await stream.read(1 << 16):
            pass

    await asyncio.gather(*(read_all(stream) for stream in streams))


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
