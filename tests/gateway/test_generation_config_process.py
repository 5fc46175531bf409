"""`legato gateway` tells workers what the model's makers set, shows it, and does not start with what is wrong."""

import asyncio
import json
import os
import shutil
import sys

import httpx
import pytest

from legato_protocol import model_digest
from legato_protocol.stream import Generate

LEGATO = [sys.executable, "-m", "legato_cli.main", "gateway", "--max-length", "4096", "--served-name", "m"]
ENVIRON = os.environ | {"LEGATO_TOKEN": "secret"}
TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture
def tuned(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 40, "eos_token_id": 9}')
    return folder


@pytest.mark.parametrize(
    ("flags", "shown", "temperature", "said"),
    [
        ((), {"temperature": 0.3, "top_k": 40}, 0.3, "sampling defaults of the model: temperature 0.3, top_k 40"),
        (("--generation-config=None",), {}, 1.0, "sampling defaults are neutral"),
    ],
)
async def test_defaults_reach_the_workers_unless_they_are_off(lab, tuned, tmp_path, flags, shown, temperature, said):
    """Ends of sequence are not switched off with them, as in vLLM: without them no answer would end."""
    announced = tmp_path / "announced.json"
    async with asyncio.timeout(60), lab.unified(1, model=model_digest.of(tuned))[0] as worker:
        ports = ["--port=0", "--health-port=0", "--control-port=0", f"--announce={announced}"]
        listed = f"--worker={worker.name}={worker.address}"
        process = await asyncio.create_subprocess_exec(
            *LEGATO, f"--model={tuned}", *ports, listed, *flags, env=ENVIRON, stderr=asyncio.subprocess.PIPE
        )
        while not announced.exists():
            assert process.returncode is None, "the gateway ended"
            await asyncio.sleep(0.01)
        found = json.loads(announced.read_text())
        url, control = (f"http://127.0.0.1:{found[name]}" for name in ("http", "control"))
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            while (await client.get(f"{url}/readyz")).status_code != 200:  # noqa: ASYNC110 – another process
                await asyncio.sleep(0.01)
            body = {"prompt": "hello", "max_tokens": 3}
            assert (await client.post(f"{url}/v1/completions", json=body)).status_code == 200
            (listed_model,) = (await client.get(f"{url}/v1/models")).json()["data"]
            state = (await client.get(f"{control}/state", headers=TOKEN)).json()
        process.terminate()
        _, log = await process.communicate()
        (sent,) = worker.got(Generate)
        assert (sent.sequence.params.temperature, sent.sequence.params.stop_token_ids) == (temperature, (9,))
        assert listed_model["default_sampling_params"] == shown
        assert state["model"] == {"name": "m", "max_length": 4096, "default_sampling_params": shown}
        assert said in log.decode()


@pytest.mark.parametrize(
    ("key", "flags"), [("temperature", ()), ("eos_token_id", ()), ("eos_token_id", ("--generation-config=None",))]
)
async def test_a_gateway_does_not_start_with_what_is_wrong(tuned, key, flags):
    (tuned / "generation_config.json").write_text(json.dumps({key: "hot"}))
    process = await asyncio.create_subprocess_exec(
        *LEGATO, f"--model={tuned}", "--port=0", *flags, env=ENVIRON, stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    (line,) = said.decode().splitlines()
    assert line.startswith(f"legato gateway: {tuned / 'generation_config.json'}: {key}: not a valid ")
