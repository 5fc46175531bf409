"""`legato gateway` as a process that finds its workers in a real API server."""

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


async def test_a_gateway_serves_by_workers_of_a_service(
    cluster, kubeconfig, lab, model, tcp_relay, tmp_path, monkeypatch
):
    """And a watch that waits does not hold it up when it stops."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig()))
    host = own_address()
    flags = ("--workers-service", "s-workers", "--namespace", "demo")
    (worker,) = lab.unified(1, model=model_digest.digest(model))
    async with (
        worker,
        tcp_relay(*worker.address.split(":")).running(host) as way,
        gateway_process(tmp_path, model, *flags) as gateway,
    ):

        async def unlisted():
            return "none is listed)" in (await gateway.get("/readyz")).text

        await gateway.until(unlisted)
        cluster.put("a", ("u0", host), port=way.port)
        await gateway.until_ready()
        assert (await gateway.ask()).json()["usage"]["completion_tokens"] == 30
