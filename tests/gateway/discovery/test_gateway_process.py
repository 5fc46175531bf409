"""`legato gateway` as a process that finds its workers in a real API server."""

import asyncio
import contextlib
import socket

import pytest
from gateway_process import gateway_process

from legato_protocol import model_digest


def own_address():
    """An address that an EndpointSlice may hold: loopback ones are refused."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        asked.connect(("198.51.100.1", 9))  # sends nothing
        return asked.getsockname()[0]
    pytest.skip("this machine has no address but loopback's")


async def test_a_gateway_serves_by_workers_of_a_service(cluster, config, lab, model, tcp_relay, tmp_path, monkeypatch):
    """It goes on while the API server is away, and a watch that waits does not hold it up when it stops."""
    monkeypatch.setenv("KUBECONFIG", str(config))
    host = own_address()
    flags = ("--workers-service", "s-workers", "--namespace", "demo")
    (worker,) = lab.unified(1, model=model_digest.of(model))
    async with (
        worker,
        tcp_relay(*worker.address.split(":")).running(host) as way,
        gateway_process(tmp_path, model, *flags) as gateway,
    ):

        async def troubled():
            return bool((await gateway.get("/state", "control", token=True)).json()["discovery"]["problem"])

        async def unlisted():
            return "none is listed)" in (await gateway.get("/readyz")).text

        await gateway.until(unlisted)
        cluster.put("a", ("u0", host), port=way.port)
        await gateway.until_ready()
        cluster.server.kill()
        try:
            await gateway.until(troubled)
            answer = (await gateway.ask()).json()
        finally:
            await asyncio.to_thread(cluster.server.start)
        assert answer["usage"]["completion_tokens"] == 30
        await gateway.until(troubled, False)
