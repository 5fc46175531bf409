"""`legato gateway` as a process: start, announce, serve, follow its workers file, stop."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys

import httpx
import pytest

from legato_gateway.discovery import WorkerAddress
from legato_gateway.errors import InternalFault
from legato_gateway.gateway import Gateway
from legato_gateway.serving.preparation import LONG
from legato_gateway.settings import GatewaySettings
from legato_gateway.testing.fake_worker import FakeWorker
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol import demand, model_digest
from legato_protocol.demand import LengthBucket
from legato_protocol.stream import Generate

LEGATO = [sys.executable, "-m", "legato_cli.main", "gateway"]


def _worker(lab, model):
    return lab.unified(1, model=model_digest.of(model))[0]


TOKEN = {"authorization": "Bearer secret"}


async def _gateway(folder, model, *flags):
    """The process and its base URL, once it has announced itself."""
    process, ports = await _announced(folder / "announced.json", model, "--port", "0", *flags)
    return process, _url(ports, "http")


async def _with_own_ports(folder, model, *flags):
    """The process, and the base URLs of its three ports."""
    flags = ("--port", "0", "--health-port", "0", "--control-port", "0", *flags)
    process, ports = await _announced(folder / "announced.json", model, *flags)
    return process, *(_url(ports, name) for name in ("http", "health", "control"))


def _url(ports, name):
    return f"http://127.0.0.1:{ports[name]}"


async def _announced(path, model, *flags, inherited=(), output=None):
    """The process and the ports it announced."""
    command = [*LEGATO, "--model", str(model), "--max-length", "4096", "--served-name", "m", "--announce", str(path)]
    environ = os.environ | {"LEGATO_TOKEN": "secret"}
    process = await asyncio.create_subprocess_exec(*command, *flags, env=environ, pass_fds=inherited, stdout=output)
    while not path.exists():
        assert process.returncode is None, "the gateway ended"
        await asyncio.sleep(0.01)
    return process, json.loads(path.read_text())


async def _until_ready(client, ready=True):
    while ((await client.get("/readyz")).status_code == 200) is not ready:  # noqa: ASYNC110 – another process
        await asyncio.sleep(0.01)


async def _refused(*flags):
    process = await asyncio.create_subprocess_exec(
        *LEGATO, *flags, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_serves_follows_its_workers_and_finishes_streams_on_sigterm(lab, model, tmp_path):
    listed = tmp_path / "workers.json"
    async with asyncio.timeout(60), _worker(lab, model) as worker:
        process, url, health, control = await _with_own_ports(tmp_path, model, "--workers-file", str(listed))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            assert (await client.get("/readyz")).status_code == 503
            draft = tmp_path / "draft"
            draft.write_text(json.dumps([{"worker": worker.name, "address": worker.address}]))
            draft.replace(listed)
            await _until_ready(client)
            body = {
                "model": "m",
                "prompt": "hello",
                "max_tokens": 30,
                "seed": 7,
                "temperature": 0,
                "user": "zanzibar",
            }
            answer = (await client.post("/v1/completions", json=body)).json()
            assert answer["usage"]["completion_tokens"] == 30
            state = (await client.get(f"{control}/state", headers=TOKEN)).json()
            assert state["workers"][0]["role"] == "unified"
            assert state["requests"][0]["decode"] == "u0"
            metrics = (await client.get(f"{health}/metrics")).text
            assert "legato_gateway_output_tokens_total 30.0" in metrics
            assert "zanzibar" not in metrics, "a client chooses its user: as a label it would grow without bounds"
            worker.hold("decoding", after=5)
            streaming = asyncio.create_task(client.post("/v1/completions", json=body | {"stream": True}))
            await worker.wait_at("decoding")
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(_wait_closed, url)
            worker.release()
            assert (await streaming).text.rstrip().endswith("data: [DONE]")
            assert await process.wait() == 0


@pytest.mark.parametrize(("flags", "lines"), [((), 1), (("--access-log", "Off"), 0)])
async def test_requests_are_logged_to_standard_output_unless_told_otherwise(lab, model, tmp_path, flags, lines):
    async with asyncio.timeout(60), _worker(lab, model) as worker:
        flagged = ("--port", "0", "--worker", f"{worker.name}={worker.address}", *flags)
        announced = tmp_path / "announced.json"
        process, ports = await _announced(announced, model, *flagged, output=asyncio.subprocess.PIPE)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['http']}", trust_env=False) as client:
            await _until_ready(client)
            body = {"model": "m", "prompt": "hello", "max_tokens": 3, "stream": True}
            answer = await client.post("/v1/completions", json=body)
        process.send_signal(signal.SIGTERM)
        said = (await process.communicate())[0].decode().splitlines()
        assert len(said) == lines
        for line in said:
            assert " POST /v1/completions 200 " in line
            assert f" id={answer.headers['x-request-id']} model=m prompt_tokens=5 " in line
            assert " output_tokens=3 first_token_seconds=" in line
            assert line.endswith(" finish=length")


async def test_of_many_requests_at_zero_those_in_the_buffer_are_answered_and_the_others_told_to_come_back(
    lab, model, tmp_path
):
    workers = tmp_path / "workers.json"
    workers.write_text("[]")
    flags = ("--workers-file", str(workers), "--hold-without-workers", "--max-queued-requests", "150")
    process, base = await _gateway(tmp_path, model, *flags)
    worker, body = _worker(lab, model), {"model": "m", "prompt": "hello", "max_tokens": 5}
    limits = httpx.Limits(max_connections=None)
    async with (
        asyncio.timeout(60),
        httpx.AsyncClient(base_url=base, trust_env=False, timeout=60, limits=limits) as client,
    ):
        await _until_ready(client)
        asked = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(200)]
        while sum(task.done() for task in asked) < 50:  # noqa: ASYNC110 – another process
            await asyncio.sleep(0.01)
        async with worker:
            draft = tmp_path / "draft"
            draft.write_text(json.dumps([{"worker": worker.name, "address": worker.address}]))
            draft.replace(workers)
            answers = await asyncio.gather(*asked)
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    refused = [answer for answer in answers if answer.status_code == 503]
    assert sorted(answer.status_code for answer in answers) == [200] * 150 + [503] * 50
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert {answer.headers["x-legato-drop-reason"] for answer in refused} == {"queue_full"}


async def test_demand_and_state_are_told_on_the_control_port_alone_and_to_who_has_the_token(lab, model, tmp_path):
    async with asyncio.timeout(60), _worker(lab, model) as worker:
        flag = f"--worker={worker.name}={worker.address}"
        process, public, health, control = await _with_own_ports(tmp_path, model, flag)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            while (await client.get(f"{public}/readyz")).status_code != 200:  # noqa: ASYNC110 – another process
                await asyncio.sleep(0.01)
            body = {"model": "m", "prompt": "hello", "max_tokens": 30, "seed": 7, "temperature": 0}
            await client.post(f"{public}/v1/completions", json=body)
            report = demand.decode((await client.get(f"{control}/demand", headers=TOKEN)).content)
            assert report.arrivals == (LengthBucket(4, 1, 5),)
            assert report.outputs == (LengthBucket(16, 1, 30),)
            assert [(told.worker, told.role) for told in report.workers] == [("u0", "unified")]
            for path in ("/demand", "/state"):
                assert (await client.get(f"{public}{path}", headers=TOKEN)).status_code == 404
                assert (await client.get(f"{health}{path}", headers=TOKEN)).status_code == 404
                assert (await client.get(f"{control}{path}")).status_code == 401
                wrong = {"authorization": "Bearer x"}
                assert (await client.get(f"{control}{path}", headers=wrong)).status_code == 401
            metrics = (await client.get(f"{health}/metrics")).text
            assert "legato_gateway_arrived_prompt_tokens_sum 5.0" in metrics
            assert 'legato_gateway_output_length_tokens_bucket{le="31.0"} 1.0' in metrics
            assert 'legato_gateway_output_length_tokens_bucket{le="15.0"} 0.0' in metrics
        process.terminate()
        assert await process.wait() == 0


async def test_who_waits_for_demand_is_answered_when_a_request_is_held(lab, model, tmp_path):
    async with asyncio.timeout(60):
        process, public, _, control = await _with_own_ports(tmp_path, model, "--hold-without-workers")
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            wrong = await client.get(f"{control}/demand?wait=soon", headers=TOKEN)
            assert (wrong.status_code, wrong.json()["error"]) == (400, "wait: a number of seconds is expected")
            asked = asyncio.create_task(client.get(f"{control}/demand?wait=1e9", headers=TOKEN))
            body = {"model": "m", "prompt": "hello", "max_tokens": 30}
            brief = {"x-legato-deadline": "2s"}  # it is held no more by the time that an answer comes without it
            waiting = asyncio.create_task(client.post(f"{public}/v1/completions", json=body, headers=brief))
            assert demand.decode((await asked).content).held_requests == 1
            waiting.cancel()
            await asyncio.wait((waiting,))
        process.terminate()
        assert await process.wait() == 0


async def test_metrics_are_on_the_health_port_alone_which_knows_nothing_else_but_probes(lab, model, tmp_path):
    async with asyncio.timeout(60):
        process, public, health, control = await _with_own_ports(tmp_path, model)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for path in ("/healthz", "/readyz"):
                asked = [await client.get(f"{url}{path}") for url in (public, health)]
                assert asked[0].status_code == asked[1].status_code != 404
                assert asked[0].json() == asked[1].json()
            assert (await client.get(f"{health}/metrics")).headers["content-type"].startswith("text/plain")
            assert (await client.get(f"{public}/metrics")).status_code == 404
            assert (await client.get(f"{control}/metrics", headers=TOKEN)).status_code == 404
            assert (await client.get(f"{health}/v1/models")).status_code == 404
            assert (await client.get(f"{public}/v1/models")).status_code == 200
        process.terminate()
        assert await process.wait() == 0


def _wait_closed(url):
    """Until nobody listens there any more."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) != 0:
                return


async def test_workers_of_another_model_are_given_nothing_and_named(lab, model, tmp_path):
    """Its ids would be other words to them. The gateway is ready once there is a worker of its own model."""
    listed = tmp_path / "workers.json"
    other = FakeWorker("other", token=lab.token, model="another")
    async with asyncio.timeout(60), other, _worker(lab, model) as worker:
        listed.write_text(json.dumps([{"worker": "other", "address": other.address}]))
        process, url, health, control = await _with_own_ports(tmp_path, model, "--workers-file", str(listed))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            while "another model (another)" not in (said := await client.get("/readyz")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert said.status_code == 503
            state = (await client.get(f"{control}/state", headers=TOKEN)).json()
            assert "another model" in state["workers"][0]["problem"]
            metrics = (await client.get(f"{health}/metrics")).text
            assert 'legato_gateway_foreign_workers_total{worker="other"} 1.0' in metrics
            draft = tmp_path / "draft"
            workers = [{"worker": each.name, "address": each.address} for each in (other, worker)]
            draft.write_text(json.dumps(workers))
            draft.replace(listed)
            await _until_ready(client)
            body = {"model": "m", "prompt": "hello", "max_tokens": 3}
            for _ in range(4):
                assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert not other.got(Generate)
        process.terminate()
        assert await process.wait() == 0


async def test_streams_beyond_the_drain_deadline_end_with_an_error(lab, model, tmp_path):
    async with asyncio.timeout(60), _worker(lab, model) as worker:
        flags = ["--worker", f"u0={worker.address}", "--drain-deadline", "200ms"]
        process, url = await _gateway(tmp_path, model, *flags)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            await _until_ready(client)
            worker.hold("decoding", after=5)
            body = {"model": "m", "prompt": "hello", "max_tokens": 30, "stream": True}
            streaming = asyncio.create_task(client.post("/v1/completions", json=body))
            await worker.wait_at("decoding")
            process.send_signal(signal.SIGTERM)
            assert "this gateway stops" in (await streaming).text
            assert await process.wait() == 0
            await worker.wait(lambda: not worker.engine.jobs)


async def test_a_client_that_leaves_stops_the_work(lab, model, tmp_path):
    async with asyncio.timeout(60), _worker(lab, model) as worker:
        process, url = await _gateway(tmp_path, model, "--worker", f"u0={worker.address}")
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            await _until_ready(client)
            body = {"model": "m", "prompt": "hello", "max_tokens": 4000, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                await anext(response.aiter_bytes())
                assert worker.engine.jobs
            await worker.wait(lambda: not worker.engine.jobs)
        process.terminate()
        assert await process.wait() == 0


async def test_a_fault_of_ours_ends_every_request_at_once(lab, model):
    """Nothing listens to the workers any more: whoever waits or still comes is told, and not left to a deadline."""

    class Faulty:
        def __init__(self, listed):
            self.fault, self._listed = asyncio.Event(), listed

        async def watch(self):
            yield self._listed
            await self.fault.wait()
            raise KeyError("a fault")

    async with asyncio.timeout(60), _worker(lab, model) as worker:
        settings = GatewaySettings(str(model), "m", 4096, token=lab.token)
        digest = model_digest.of(model)
        gateway = Gateway(settings, ModelTokenizer.load(model), digest, asyncio.get_running_loop())
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


async def test_a_taken_port_stops_the_start_and_is_named(lab, model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = await _refused("--model", str(model), "--max-length", "100", "--port", port)
    assert code == 2
    assert f"--port {port}" in said


async def test_gateways_that_share_a_socket_take_over_from_one_another(lab, model, tmp_path):
    """The first ends while requests keep coming on new and on kept connections, and while one streams: none fails."""
    with socket.create_server(("127.0.0.1", 0)) as front:
        url = f"http://127.0.0.1:{front.getsockname()[1]}"
        async with asyncio.timeout(60), _worker(lab, model) as worker:
            flags = ["--worker", f"u0={worker.address}", "--listen-fd", str(front.fileno()), "--health-port", "0"]
            inherited = (front.fileno(),)
            first, ports = await _announced(tmp_path / "1", model, *flags, inherited=inherited)
            assert ports["http"] == front.getsockname()[1] != ports["health"]
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
                await _until_ready(client)
                worker.hold("decoding", after=5)
                body = {"model": "m", "prompt": "hello", "max_tokens": 30}
                streaming = asyncio.create_task(client.post("/v1/completions", json=body | {"stream": True}))
                await worker.wait_at("decoding")
                second, own = await _announced(tmp_path / "2", model, *flags, inherited=inherited)
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{own['health']}") as probe:
                    await _until_ready(probe)
                stop = asyncio.Event()
                users = [asyncio.create_task(_ask_until(stop, url, kept)) for kept in (True, True, False, False)]
                first.send_signal(signal.SIGTERM)
                await asyncio.to_thread(_wait_closed, f"http://127.0.0.1:{ports['health']}")
                worker.release()
                assert (await streaming).text.rstrip().endswith("data: [DONE]")
                assert await first.wait() == 0
                stop.set()
                assert all([await user for user in users])
            second.terminate()
            assert await second.wait() == 0


async def _ask_until(stop, url, kept):
    """Asks on without a pause, on one connection or on a new one each time. How many answers came; all must be 200."""
    count, headers = 0, {} if kept else {"connection": "close"}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30, headers=headers) as client:
        while not stop.is_set():
            (await client.get("/readyz")).raise_for_status()
            count += 1
    return count


async def test_a_number_that_is_no_listening_socket_stops_the_start(lab, model):
    code, said = await _refused("--model", str(model), "--max-length", "100", "--listen-fd", "77")
    assert code == 2
    assert "--listen-fd 77" in said


async def test_a_model_without_a_tokenizer_stops_the_start(lab, tmp_path):
    code, said = await _refused("--model", str(tmp_path), "--max-length", "100", "--port", "0")
    assert code == 2
    assert "tokenizer.json" in said


async def test_a_gateway_dies_with_its_parent(lab, model, tmp_path):
    """Its parent is killed without a chance to tell it."""
    announced = tmp_path / "announced.json"
    flags = ["--model", str(model), "--max-length", "100", "--port", "0", "--announce", str(announced)]
    code = (
        "import os, subprocess; own = os.environ | {'LEGATO_PARENT': str(os.getpid())}\n"
        f"subprocess.Popen({[*LEGATO, *flags]!r}, env=own).wait()"
    )
    async with asyncio.timeout(60):
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        while not announced.exists():  # noqa: ASYNC110 – another process makes it
            await asyncio.sleep(0.01)
        parent.kill()
        await parent.wait()
        await asyncio.to_thread(_wait_closed, f"http://127.0.0.1:{json.loads(announced.read_text())['http']}")


async def test_pages_may_read_what_connections_of_the_public_port_alone_answer(lab, model, tmp_path):
    async with asyncio.timeout(60):
        flags = ("--worker", "u0=127.0.0.1:9", "--allowed-origin", "https://chat.example.com")
        process, *urls = await _with_own_ports(tmp_path, model, *flags)
        answers = []
        for url in urls:
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
            writer.write(b"GET / HTTP/1.1\r\norigin: https://chat.example.com\r\nx: x\r\n\0: x\r\n\r\n")
            answers.append(await reader.read())
            writer.close()
        process.terminate()
        await process.wait()
    assert all(answer.startswith(b"HTTP/1.1 400 ") for answer in answers)
    assert [b"access-control-allow-origin" in answer for answer in answers] == [True, False, False]


async def test_a_gateway_that_is_told_to_stores_responses(lab, model, tmp_path):
    chats = tmp_path / "model"
    shutil.copytree(model, chats)
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (chats / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    async with asyncio.timeout(60), _worker(lab, chats) as worker:
        flags = ("--worker", f"u0={worker.address}", "--response-retention", "1h")
        process, url, health, _ = await _with_own_ports(tmp_path, chats, *flags)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
            await _until_ready(client)
            body = {"input": "hello", "max_output_tokens": 4, "seed": 7}
            made = (await client.post("/v1/responses", json=body)).json()
            assert (await client.get(f"/v1/responses/{made['id']}")).json() == made
            said = {"role": "user", "content": "again"}
            body |= {"input": [said, {"type": "reasoning", "content": "x" * LONG}]}  # read in another process
            again = (await client.post("/v1/responses", json=body | {"previous_response_id": made["id"]})).json()
            answer = made["output"][0]["content"][0]["text"]
            assert again["usage"]["input_tokens"] == len(f"hello{answer}again".encode())
            listed = (await client.get(f"/v1/responses/{again['id']}/input_items?order=asc")).json()["data"]
            assert [item["content"][0]["text"][:9] for item in listed] == ["hello", answer[:9], "again", "x" * 9]
            assert listed[1]["id"] == made["output"][0]["id"]
            metrics = (await client.get(f"{health}/metrics")).text
            assert "legato_gateway_stored_responses 2.0" in metrics
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
