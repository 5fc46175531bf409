"""`legato gateway` as a process that finds its workers in a real API server."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys

import httpx
import pytest

from legato_protocol import model_digest

LIMIT = 90.0  # seconds; only a hang reaches it


async def until(condition):
    while not await condition():  # noqa: ASYNC110 – another process
        await asyncio.sleep(0.01)


async def _ready(client):
    return (await client.get("/readyz")).status_code == 200


async def _unready(client, why):
    return why in (await client.get("/readyz")).text


async def _troubled(client, control, token):
    state = await client.get(f"{control}/state", headers={"authorization": f"Bearer {token}"})
    return state.json()["discovery"]["problem"]


async def _untroubled(client, control, token):
    return not await _troubled(client, control, token)


def own_address():
    """An address that an EndpointSlice may hold: loopback ones are refused."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        asked.connect(("198.51.100.1", 9))  # sends nothing
        return asked.getsockname()[0]
    pytest.skip("this machine has no address but loopback's")


async def test_a_gateway_serves_by_workers_of_a_service(cluster, config, lab, model, tcp_relay, tmp_path):
    """It goes on while the API server is away, and a watch that waits does not hold it up when it stops."""
    announced = tmp_path / "announced"
    command = [sys.executable, "-m", "legato_cli.main", "gateway", "--model", str(model), "--max-length", "4096"]
    command += [
        "--host",
        "0.0.0.0",
        "--port",
        "0",
        "--control-port",
        "0",
        "--announce",
        str(announced),
        "--served-name",
        "m",
    ]
    command += ["--workers-service", "s-workers", "--namespace", "demo"]
    environ = os.environ | {"LEGATO_TOKEN": lab.token, "KUBECONFIG": str(config)}
    body = {"model": "m", "prompt": "hello", "max_tokens": 30}
    host = own_address()
    (worker,) = lab.unified(1, model=model_digest.of(model))
    async with asyncio.timeout(LIMIT), worker, tcp_relay(*worker.address.split(":")).running(host) as way:
        gateway = await asyncio.create_subprocess_exec(*command, env=environ)
        while not announced.exists():
            assert gateway.returncode is None
            await asyncio.sleep(0.01)
        ports = json.loads(announced.read_text())
        url, control = (f"http://127.0.0.1:{ports[name]}" for name in ("http", "control"))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            await until(lambda: _unready(client, "none is listed)"))
            cluster.put("a", ("u0", host), port=way.port)
            await until(lambda: _ready(client))
            cluster.server.kill()
            try:
                await until(lambda: _troubled(client, control, lab.token))
                answer = (await client.post("/v1/completions", json=body)).json()
            finally:
                await asyncio.to_thread(cluster.server.start)
            assert answer["usage"]["completion_tokens"] == 30
            await until(lambda: _untroubled(client, control, lab.token))
        gateway.send_signal(signal.SIGTERM)
        assert await gateway.wait() == 0


async def test_a_gateway_outside_of_a_cluster_says_so(model):
    command = [sys.executable, "-m", "legato_cli.main", "gateway", "--model", str(model), "--max-length", "4096"]
    command += ["--port", "0", "--workers-service", "s-workers", "--namespace", "demo"]
    outside = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")
    environ = {name: value for name, value in os.environ.items() if name not in outside}
    gateway = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.PIPE)
    _, said = await asyncio.wait_for(gateway.communicate(), LIMIT)
    assert gateway.returncode == 2
    assert b"--workers-service s-workers: the cluster's address and token cannot be read" in said
