"""`legato gateway` as a process: start, announce, serve, follow its workers file, stop."""

import asyncio
import json
import re
import shutil
import signal
import socket
from asyncio.subprocess import PIPE

import httpx
import pytest
from gateway_process import LIMIT, gateway_process, refused

from legato_gateway.discovery.addresses import WorkerAddress
from legato_gateway.errors import InternalFault
from legato_gateway.gateway import Gateway
from legato_gateway.serving.bodies.preparation import LONG
from legato_gateway.settings import GatewaySettings
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol.model_files import model_digest
from legato_protocol.wire import demand
from legato_protocol.wire.demand import LengthBucket
from legato_protocol.wire.stream import Generate


def _worker(lab, model):
    return lab.unified(1, model=model_digest.digest(model))[0]


def _list(path, *workers):
    draft = path.with_name("draft")
    draft.write_text(json.dumps([{"worker": worker.name, "address": worker.address} for worker in workers]))
    draft.replace(path)


async def _closed(url):
    while True:
        with socket.socket() as probe:
            if await asyncio.to_thread(probe.connect_ex, ("127.0.0.1", httpx.URL(url).port)) != 0:
                return


async def test_serves_follows_its_workers_and_finishes_streams_on_sigterm(lab, model, tmp_path):
    listed = tmp_path / "workers.json"
    flags = ("--workers-file", str(listed))
    async with _worker(lab, model) as worker, gateway_process(tmp_path, model, *flags, stdout=PIPE) as gateway:
        assert (await gateway.get("/readyz")).status_code == 503
        _list(listed, worker)
        await gateway.until_ready()
        answer = await gateway.ask(user="zanzibar")
        assert answer.json()["usage"]["completion_tokens"] == 30
        state = (await gateway.get("/state", "control", token=True)).json()
        assert (state["workers"][0]["role"], state["requests"][0]["decode"]) == ("unified", "u0")
        metrics = (await gateway.get("/metrics", "health")).text
        assert "legato_gateway_output_tokens_total 30.0" in metrics
        assert "zanzibar" not in metrics, "a client chooses its user: as a label it would grow without bounds"
        worker.hold("decoding", after=5)
        streaming = asyncio.create_task(gateway.ask(stream=True))
        await worker.wait_at("decoding")
        gateway.process.send_signal(signal.SIGTERM)
        await _closed(gateway.url("http"))
        worker.release()
        assert (await streaming).text.rstrip().endswith("data: [DONE]")
        line, _ = await gateway.end()
        assert " POST /v1/completions 200 " in line
        assert f" id={answer.headers['x-request-id']} model=m prompt_tokens=5 " in line
        assert " output_tokens=30 first_token_seconds=" in line
        assert line.endswith(" finish=length")


PATHS = {  # by path: the status at each port, with the service's token, and at the control port without it
    "/demand": (404, 404, 200, 401),
    "/state": (404, 404, 200, 401),
    "/metrics": (404, 200, 404, 401),
    "/v1/models": (200, 404, 200, 401),
    "/healthz": (200, 200, 404, 401),
    "/readyz": (200, 200, 404, 401),
}


async def test_each_port_answers_what_is_its_own_and_the_control_port_only_with_the_token(lab, model, tmp_path):
    ports = ("http", "health", "control")
    async with _worker(lab, model) as worker, gateway_process(tmp_path, model, workers=[worker]) as gateway:
        await gateway.until_ready()
        await gateway.ask()
        for path, statuses in PATHS.items():
            found = [(await gateway.get(path, port, token=True)).status_code for port in ports]
            assert (*found, (await gateway.get(path, "control")).status_code) == statuses, path
        wrong = {"authorization": "Bearer x"}
        assert (await gateway.client.get(gateway.url("control") + "/state", headers=wrong)).status_code == 401
        refused = await gateway.get("/demand?wait=soon", "control", token=True)
        assert (refused.status_code, refused.json()["error"]) == (400, "wait: a number of seconds is expected")
        report = demand.decode((await gateway.get("/demand?wait=1e9&seen=other", "control", token=True)).content)
        assert (report.arrivals, report.outputs) == ((LengthBucket(4, 1, 5),), (LengthBucket(16, 1, 30),))
        assert [(each.worker, each.role) for each in report.workers] == [("u0", "unified")]
        metrics = await gateway.get("/metrics", "health")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "legato_gateway_arrived_prompt_tokens_sum 5.0" in metrics.text
        assert 'legato_gateway_output_length_tokens_bucket{le="31.0"} 1.0' in metrics.text
        assert 'legato_gateway_output_length_tokens_bucket{le="15.0"} 0.0' in metrics.text


async def test_a_fault_of_ours_ends_every_request_at_once(lab, model):
    """Nothing listens to the workers any more: requests end with an error, and are not left to their deadlines."""

    class Faulty:
        def __init__(self, listed):
            self.fault, self._listed = asyncio.Event(), listed

        async def watch(self):
            yield self._listed
            await self.fault.wait()
            raise KeyError("a fault")

    async with asyncio.timeout(LIMIT), _worker(lab, model) as worker:
        settings, loop = GatewaySettings(str(model), "m", 4096, token=lab.token), asyncio.get_running_loop()
        gateway = Gateway(settings, ModelTokenizer.load(model), model_digest.digest(model), loop)
        gateway.discovery = Faulty((WorkerAddress("u0", worker.address),))
        following = asyncio.create_task(gateway.follow())
        worker.hold("decoding", after=3)
        running = gateway.relay.submit(lab.request(deadline=1000.0))
        await worker.wait_at("decoding")
        gateway.discovery.fault.set()
        with pytest.raises(KeyError):
            await following
        for request in (running, gateway.relay.submit(lab.request(deadline=1000.0))):
            with pytest.raises(InternalFault):
                [delta async for delta in request]


async def test_gateways_that_share_a_socket_take_over_from_one_another(lab, model, tmp_path):
    """The first ends while requests keep coming on new and on kept connections, and while one streams: none fails."""
    stop = asyncio.Event()

    async def ask_until(url, kept):
        headers = {} if kept else {"connection": "close"}
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30, headers=headers) as client:
            count = 0
            while not stop.is_set():
                (await client.get("/readyz")).raise_for_status()
                count += 1
            return count

    with socket.create_server(("127.0.0.1", 0)) as front:
        worker, flags = _worker(lab, model), ("--listen-fd", str(front.fileno()))
        shared = {"workers": [worker], "fds": (front.fileno(),)}
        async with worker, gateway_process(tmp_path, model, *flags, **shared) as first:
            assert first.ports["http"] == front.getsockname()[1] != first.ports["health"]
            await first.until_ready()
            worker.hold("decoding", after=5)
            streaming = asyncio.create_task(first.ask(stream=True))
            await worker.wait_at("decoding")
            async with gateway_process(tmp_path, model, *flags, **shared) as second:
                await second.until_ready("health")
                users = [asyncio.create_task(ask_until(first.url("http"), kept)) for kept in (True, True, False, False)]
                first.process.send_signal(signal.SIGTERM)
                await _closed(first.url("health"))
                worker.release()
                assert (await streaming).text.rstrip().endswith("data: [DONE]")
                await first.end()
                stop.set()
                assert all(await asyncio.gather(*users))


UNUSABLE = {
    "--model={model} --port={taken}": "--port {taken}: ",
    "--model={folder} --port=0": "tokenizer.json",
    "--model={tuned} --port=0": "legato gateway: {tuned}/generation_config.json: temperature: not a valid ",
}


@pytest.mark.parametrize("flags", UNUSABLE)
async def test_what_it_cannot_start_with_is_named_in_a_line(model, tmp_path, flags):
    tuned = shutil.copytree(model, tmp_path / "tuned")
    (tuned / "generation_config.json").write_text('{"temperature": "hot"}')
    with socket.create_server(("127.0.0.1", 0)) as front:
        known = {"model": model, "taken": front.getsockname()[1], "folder": tmp_path, "tuned": tuned}
        assert UNUSABLE[flags].format(**known) in await refused(*flags.format(**known).split())


async def test_what_its_folder_and_its_settings_say_reaches_workers_and_clients(lab, chat_model, tmp_path):
    """Defaults of the model's makers, its chat template, and that responses are stored."""
    (chat_model / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 40, "eos_token_id": 9}')
    shown = {"temperature": 0.3, "top_k": 40}
    async with (
        _worker(lab, chat_model) as worker,
        gateway_process(tmp_path, chat_model, "--response-retention", "1h", workers=[worker], stderr=PIPE) as gateway,
    ):
        await gateway.until_ready()
        (listed_model,) = (await gateway.get("/v1/models")).json()["data"]
        assert listed_model["default_sampling_params"] == shown
        state = (await gateway.get("/state", "control", token=True)).json()
        formats = {key: state["model"].pop(key)["reason"] for key in ("tool_calls", "reasoning")}
        assert state["model"] == {"name": "m", "max_length": 4096, "default_sampling_params": shown}
        assert formats["tool_calls"] == "the chat template takes no tools"
        body = {"input": "hello", "max_output_tokens": 4, "seed": 7}
        made = (await gateway.client.post("/v1/responses", json=body)).json()
        (sent,) = worker.got(Generate)
        assert (sent.sequence.params.temperature, sent.sequence.params.stop_token_ids) == (0.3, (9,))
        assert (await gateway.get(f"/v1/responses/{made['id']}")).json() == made
        said = {"role": "user", "content": "again"}
        body |= {"input": [said, {"type": "reasoning", "content": "x" * LONG}]}  # read in another process
        body["previous_response_id"] = made["id"]
        again = (await gateway.client.post("/v1/responses", json=body)).json()
        answer = made["output"][0]["content"][0]["text"]
        assert again["usage"]["input_tokens"] == len(f"hello{answer}again".encode())
        listed = (await gateway.get(f"/v1/responses/{again['id']}/input_items?order=asc")).json()["data"]
        assert [item["content"][0]["text"][:9] for item in listed] == ["hello", answer[:9], "again", "x" * 9]
        assert listed[1]["id"] == made["output"][0]["id"]
        for _ in range(2):
            await gateway.client.post("/v1/completions", json={"prompt": "once " * 500, "max_tokens": 1})
        metrics = (await gateway.get("/metrics", "health")).text
        assert "legato_gateway_stored_responses 2.0" in metrics
        assert 1000 < float(re.search(r"token_cache_hit_characters_total (\d\S+)", metrics)[1]) < 2500
        assert "sampling defaults of the model: temperature 0.3, top_k 40" in "".join(await gateway.end())
