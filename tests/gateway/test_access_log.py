"""The line of a request: how it went, nothing of what was said, and one line alone."""

import asyncio
import json

import pytest
from tests.support import asgi
from waiting import until

from legato_gateway import access_log
from legato_gateway.access_log import AccessEntry
from legato_gateway.errors import Overloaded, WorkerFailed
from legato_gateway.request import Delta
from legato_gateway.serving.event_stream import StreamPolicy

SECRET = "swordfish"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_generation_s_line_tells_its_tokens_and_times(gateway, stream):
    hangs = gateway.gate()
    gateway.script(Delta(0, "a"), hangs, Delta(0, SECRET, finish="stop"))
    asked = asyncio.create_task(gateway.complete(prompt=SECRET, stream=stream, user=SECRET))
    await hangs.reached.wait()
    assert gateway.entries == []
    (generation,) = gateway.relay.generations
    generation.route.finish, generation.route.attempt, generation.route.preemptions = "stop", 2, 1
    generation.route.seconds = {"first_token": 0.25, "queue": 0.125, "prefill": 0.125, "decode": 1.5, "total": 1.75}
    generation.route.seconds["tpot"] = 0.5
    generation.route.kv_blocks_reserved, generation.route.kv_blocks_peak = 6, 4
    gateway.clock.now += 2.5
    hangs.set()
    await asked
    (entry,) = gateway.entries
    assert (entry.method, entry.path, entry.status, entry.seconds) == ("POST", "/v1/completions", 200, 2.5)
    assert (entry.model, entry.finish, entry.first_token_seconds) == ("tiny", "stop", 0.25)
    parts = (entry.queue_seconds, entry.prefill_seconds, entry.handoff_seconds, entry.decode_seconds)
    assert (*parts, entry.stream_seconds) == (0.125, 0.125, None, 1.5, 0.75)
    assert (entry.attempts, entry.preemptions) == (2, 1)
    assert (entry.kv_blocks_reserved, entry.kv_blocks_peak, entry.tpot_seconds) == (6, 4, 0.5)
    assert (entry.client_tpot_seconds is not None) == stream, "a whole answer comes in one piece"
    assert (entry.prompt_tokens, entry.cached_tokens, entry.output_tokens) == (len(SECRET), 4, 2)
    assert entry.id.startswith("cmpl-")
    assert SECRET not in entry.text() + entry.json()


async def test_prompts_of_one_request_share_a_line(gateway):
    await gateway.complete(prompt=["a", "bc"])
    assert [(entry.prompt_tokens, entry.output_tokens) for entry in gateway.entries] == [(3, 6)]


async def test_what_is_refused_has_its_status(gateway):
    await gateway.complete(model="other")
    for error in (WorkerFailed("it died", part="prefill"), RuntimeError("a bug")):
        gateway.script(error)
        await gateway.chat()
    await gateway.http.get("/nowhere")
    chat = "/v1/chat/completions"
    expected = [("/v1/completions", 404), (chat, 502), (chat, 500), ("/nowhere", 404)]
    assert [(entry.path, entry.status) for entry in gateway.entries] == expected


@pytest.mark.parametrize(("policy", "status"), [(StreamPolicy(keep_alive=0.001), 200), (StreamPolicy(), 503)])
async def test_a_refused_request_has_its_drop_reason_also_if_its_stream_had_begun(make, policy, status):
    gateway = make(policy)
    hangs, client = gateway.gate(), asgi.Sender(b'{"model": "tiny", "prompt": "hi", "stream": true}')
    gateway.script(hangs, Overloaded("full", reason="no_worker"))
    asked = asyncio.create_task(client.run(gateway.app))
    await hangs.reached.wait()
    await until(lambda: status == 503 or client.sent)
    hangs.set()
    await asked
    assert [(entry.status, entry.drop_reason) for entry in gateway.entries] == [(status, "no_worker")]


async def test_a_client_that_left_before_the_response_is_499(gateway):
    hangs, client = gateway.gate(), asgi.Sender(b'{"model": "tiny", "prompt": "hi"}')
    gateway.script(hangs)
    serving = asyncio.create_task(client.run(gateway.app))
    await hangs.reached.wait()
    client.leave()
    await serving
    assert ([(entry.status, entry.output_tokens) for entry in gateway.entries], client.sent) == ([(499, 0)], [])


async def test_a_path_stays_on_one_line_of_bounded_length_without_its_query(gateway):
    await gateway.http.get("/a%0A2026 GET /forged 200" + "x" * 10_000 + f"?key={SECRET}")
    (entry,) = gateway.entries
    assert (entry.path[:15], len(entry.path) <= access_log.LONGEST_PATH) == ("/a%0A2026%20GET", True)
    assert not any(text in entry.text() for text in ("\n", SECRET))


def test_both_formats(capsys):
    entry = AccessEntry("2026-01-01T00:00:00.000Z", "GET", "/v1/models", 200, 0.5, finish="stop", output_tokens=0)
    for kind in ("Text", "JSON"):
        access_log.writer(kind)(entry)
    text, line = capsys.readouterr().out.splitlines()
    assert text == "INFO legato.access: 2026-01-01T00:00:00.000Z GET /v1/models 200 0.5 output_tokens=0 finish=stop"
    known = {"time": "2026-01-01T00:00:00.000Z", "method": "GET", "path": "/v1/models", "status": 200, "seconds": 0.5}
    assert json.loads(line) == {**known, "output_tokens": 0, "finish": "stop"}
    assert access_log.writer("Off") is None
