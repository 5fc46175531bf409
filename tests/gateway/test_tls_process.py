"""`legato gateway` with TLS: the official client, a rotation under a stream, and files that cannot be used."""

import asyncio
import json
import os
import signal
import ssl
import sys

import certificates
import httpx
import openai
import pytest

from legato_protocol import model_digest

LEGATO = [sys.executable, "-m", "legato_cli.main", "gateway"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("tls") / "first")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("tls") / "second")


def _flags(installed):
    return ["--tls-certificate-file", str(installed.certificate), "--tls-key-file", str(installed.key)]


async def _started(folder, model, *flags):
    announced = folder / "announced.json"
    command = [*LEGATO, "--model", str(model), "--max-length", "4096", "--served-name", "m", "--announce"]
    ports = ["--port", "0", "--health-port", "0", "--control-port", "0"]
    environ = os.environ | {"LEGATO_TOKEN": "secret"}
    process = await asyncio.create_subprocess_exec(*command, str(announced), *ports, *flags, env=environ)
    while not announced.exists():
        assert process.returncode is None, "the gateway ended"
        await asyncio.sleep(0.01)
    return process, json.loads(announced.read_text())


def _client(port, authority):
    trusted = httpx.AsyncClient(verify=ssl.create_default_context(cafile=authority), trust_env=False)
    url = f"https://127.0.0.1:{port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="-", http_client=trusted, max_retries=0, timeout=30)


async def _until(condition):
    while not await condition():  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.01)


async def test_a_certificate_is_rotated_under_a_stream_of_the_official_client(lab, model, files, others, tmp_path):
    (worker,) = lab.unified(1, model=model_digest.of(model))
    installed = files.install(tmp_path)
    async with asyncio.timeout(60), worker, httpx.AsyncClient(trust_env=False) as plain:
        flags = [*_flags(installed), "--worker", f"{worker.name}={worker.address}"]
        process, ports = await _started(tmp_path, model, *flags)
        health = f"http://127.0.0.1:{ports['health']}"

        async def ready():
            return (await plain.get(f"{health}/readyz")).status_code == 200

        async def invalid():
            metrics = (await plain.get(f"{health}/metrics")).text
            return "legato_gateway_tls_certificate_invalid 1.0" in metrics

        async def rotated():
            try:
                async with _client(ports["http"], others.authority) as new:
                    return await new.models.list()
            except openai.APIConnectionError:
                return False

        await _until(ready)
        worker.hold("decoding", after=5)
        async with _client(ports["http"], files.authority) as client:
            stream = await client.completions.create(model="m", prompt="hello", max_tokens=30, stream=True)
            await worker.wait_at("decoding")
            installed.key.write_text("nothing")
            await _until(invalid)
            async with _client(ports["http"], files.authority) as another:
                assert [served.id async for served in another.models.list()] == ["m"]
            others.install(tmp_path)
            await _until(rotated)
            assert not await invalid()
            with pytest.raises(openai.APIConnectionError):
                async with _client(ports["http"], files.authority) as another:
                    await another.models.list()
            worker.release()
            assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
        with pytest.raises(httpx.TransportError):
            await plain.get(f"http://127.0.0.1:{ports['http']}/v1/models")
        reader, silent = await asyncio.open_connection("127.0.0.1", ports["http"])
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, "a client that says nothing holds up no end"
        assert await reader.read() == b""
        silent.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("missing", "No such file"), ("other key", "key values mismatch"), ("no pem", "no certificate in PEM")],
)
async def test_files_that_cannot_be_used_stop_the_start_in_a_line(lab, model, files, others, tmp_path, wrong, said):
    installed = files.install(tmp_path)
    if wrong == "missing":
        installed.certificate.unlink()
    elif wrong == "other key":
        installed.key.write_bytes(others.key.read_bytes())
    else:
        installed.certificate.write_text("nothing")
    command = [*LEGATO, "--model", str(model), "--max-length", "100", "--port", "0", *_flags(installed)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    _, told = await process.communicate()
    assert process.returncode == 2
    line = told.decode().splitlines()[-1]  # behind what the log says
    assert "Traceback" not in told.decode()
    assert "--tls-certificate-file" in line
    assert said in line
