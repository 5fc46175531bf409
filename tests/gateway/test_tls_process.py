"""`legato gateway` with TLS: the official client, and a rotation under a stream."""

import asyncio
import ssl

import certificates
import httpx
import openai
import pytest
from gateway_process import gateway_process

from legato_protocol import model_digest


def _client(port, authority):
    trusted = httpx.AsyncClient(verify=ssl.create_default_context(cafile=authority), trust_env=False)
    url = f"https://127.0.0.1:{port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="-", http_client=trusted, max_retries=0, timeout=30)


async def test_a_certificate_is_rotated_under_a_stream_of_the_official_client(lab, model, tmp_path):
    files, others = (certificates.make(tmp_path / name) for name in ("first", "second"))
    installed = files.install(tmp_path)
    flags = ("--tls-certificate-file", str(installed.certificate), "--tls-key-file", str(installed.key))
    (worker,) = lab.unified(1, model=model_digest.of(model))
    async with worker, gateway_process(tmp_path, model, *flags, workers=[worker]) as gateway:
        port = gateway.ports["http"]

        async def invalid():
            return "legato_gateway_tls_certificate_invalid 1.0" in (await gateway.get("/metrics", "health")).text

        async def rotated():
            try:
                async with _client(port, others.authority) as new:
                    return bool(await new.models.list())
            except openai.APIConnectionError:
                return False

        await gateway.until_ready("health")
        worker.hold("decoding", after=5)
        async with _client(port, files.authority) as client:
            stream = await client.completions.create(model="m", prompt="hello", max_tokens=30, stream=True)
            await worker.wait_at("decoding")
            installed.key.write_text("nothing")
            await gateway.until(invalid)
            async with _client(port, files.authority) as another:
                assert [served.id async for served in another.models.list()] == ["m"]
            others.install(tmp_path)
            await gateway.until(rotated)
            assert not await invalid()
            with pytest.raises(openai.APIConnectionError):
                async with _client(port, files.authority) as another:
                    await another.models.list()
            worker.release()
            assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
        with pytest.raises(httpx.TransportError):
            await gateway.get("/v1/models")
        reader, silent = await asyncio.open_connection("127.0.0.1", port)
        await gateway.end()  # a client that says nothing holds up no end
        assert await reader.read() == b""
        silent.close()
