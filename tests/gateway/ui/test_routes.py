"""`/ui` on the control port: the page is open and holds no data; data needs the token and holds no content."""

import json
import re
from importlib import resources

import httpx
import pytest

from legato_gateway.http import control
from legato_gateway.http.demand_report import DemandWatch
from legato_gateway.ui import page_data, routes
from legato_gateway.ui.page_data import REQUESTS, LoadSampler, UIState
from legato_gateway.workers.fleet import Fleet
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Hello

TOKEN = {"authorization": "Bearer secret"}
STATIC = resources.files("legato_gateway.ui") / "static"


async def _public(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"public {scope['path']}".encode()})


async def _get(path, report=lambda since: {"since": since}, headers=TOKEN):
    tokens, watch = ServiceTokens("secret"), DemandWatch()
    app = control.create(lambda: None, lambda: {"workers": []}, report, _public, tokens, lambda who: None, watch, None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer other"}])
async def test_without_the_token_nothing_but_the_page_is_served(headers):
    for path in ("/ui/state", "/demand", "/state", "/v1/models", "/v1/chat/completions", "/ui/nothing"):
        assert (await _get(path, headers=headers)).status_code == 401


@pytest.mark.parametrize("path", sorted(routes.OPEN))
async def test_the_page_is_served_to_browsers_which_send_no_token_with_a_strict_policy(path):
    answer = await _get(path, headers={})
    policy = answer.headers["content-security-policy"]
    assert (answer.status_code, "default-src 'none'" in policy) == (200, True)
    assert not any(word in policy for word in ("unsafe", "http"))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_page_asks_for_nothing_from_elsewhere_and_has_no_inline_script_or_style():
    names = {file.name for file in STATIC.iterdir()}
    assert names == set(routes.FILES)
    for name in names:
        text = (STATIC / name).read_text()
        assert set(re.findall(r"https?://[^\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"@import|innerHTML|eval\(|new Function", text), name
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    assert set(re.findall(r"(?:src|href)=\"(/[^\"]+)", page)) <= routes.OPEN


async def test_what_the_control_port_serves():
    assert (await _get("/v1/models")).text == "public /v1/models", "the playground's API is the public one"
    assert (await _get("/healthz")).status_code == 404
    assert (await _get("/state")).json() == {"workers": []}
    for query, since in (("", 0.0), ("?since=12.5", 12.5)):
        assert (await _get(f"/ui/state{query}")).json() == {"since": since}
    for since in ("x", "nan", "inf", ""):
        answer = await _get(f"/ui/state?since={since}")
        assert (answer.status_code, "not a time" in answer.json()["error"]) == (400, True)


def _shown(gateway, wall=lambda: 100.0):
    samples = LoadSampler(gateway.fleet, gateway.relay, wall)
    return samples, UIState("gateway-1", gateway.state.state, gateway.relay, samples, wall)


async def test_state_has_workers_samples_and_where_the_time_of_a_request_went(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        await gateway.submit(seed=7).read()
        samples, shown = _shown(gateway)
        await gateway.until(lambda: "handoff" in gateway.history.records[0].seconds)
        samples.sample()
        report = json.loads(json.dumps(shown.report(0.0)))
        assert report["service"] is None
        (state,) = report["gateways"]
        known = {"gateway": "gateway-1", "time": 100.0, "model": {"name": "m", "context": 4096}, "active": 0}
        assert state | known == state
        assert {(worker["worker"], worker["role"]) for worker in state["workers"]} == {
            ("p0", "prefill"),
            ("d0", "decode"),
        }
        assert {worker["ranks"] for worker in state["workers"]} == {2}
        (request,), (sample,) = state["requests"], state["samples"]
        assert request["workers"] == ["p0", "d0"]
        parts = {"queue", "prefill", "handoff", "first_token", "decode", "stream", "total", "tpot"}
        assert set(request["seconds"]) == parts
        assert (sample["time"], sample["pools"]["decode"]["ready"]) == (100.0, 1)
        assert sample["pools"]["decode"]["total_blocks"] == 10_000
        assert shown.report(100.0)["gateways"][0]["samples"] == []


async def test_recent_requests_are_the_last_and_hold_no_prompt_and_no_answer(lab):
    """Neither as text nor as token ids. One that was stopped has its time, too."""
    async with lab.running(lab.unified(1)) as gateway:
        for number in range(REQUESTS + 2):
            most = 1 if number <= REQUESTS else 20
            reader = await gateway.submit(id=f"r{number}", max_tokens=most, prompt=tuple(range(100, 220))).read()
        gateway.workers[0].hold("decoding", after=3)
        stopped = gateway.submit(id="stopped")
        await gateway.workers[0].wait_at("decoding")
        await stopped.generation.cancel()
        _, shown = _shown(gateway)
        text = json.dumps(shown.report(0.0))
        assert not any(said in text for said in (reader.text, reader.text[:8], "101, 102, 103"))
        requests = shown.report(0.0)["gateways"][0]["requests"]
        assert [request["id"] for request in requests] == [
            *(f"r{number}" for number in range(3, REQUESTS + 2)),
            "stopped",
        ]
        assert requests[-1]["seconds"]["total"] > 0


class NoRequests:
    active = 3

    def unplaced(self):
        return []


def _fleet():
    fleet = Fleet(lambda: 0.0, "model")
    for name, role, model in (("p0", "prefill", "model"), ("d0", "decode", "model"), ("x0", "decode", "other")):
        fleet.add(name, "127.0.0.1:1")
        fleet.greeted(name, Hello(name, "e", role, "kv", "w", "l", 16, 100, 4096, b"", "memory", model=model))
        fleet.loaded(name, Load(50, 1, 2, 60, 10, 30, 0))
    return fleet


def test_a_sample_adds_up_the_workers_of_a_role_and_leaves_out_those_of_another_model():
    samples = LoadSampler(_fleet(), NoRequests(), lambda: 5.0)
    samples.sample()
    (sample,) = samples.since(0.0)
    assert (sample.active, set(sample.pools)) == (3, {"prefill", "decode"})
    assert sample.pools["decode"] == page_data.PoolSample(1, 50, 2, 30, 100)
