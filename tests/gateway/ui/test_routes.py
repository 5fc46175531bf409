"""`/ui` on the control port: the page is open and holds no data; data needs the token and holds no content."""

import asyncio
import json
import re
from importlib import resources

import httpx
import pytest

from legato_gateway.http import control
from legato_gateway.http.held_watch import HeldWatch
from legato_gateway.serving.model_serving import ServedModel
from legato_gateway.ui import routes
from legato_gateway.ui.load_samples import LoadSampler
from legato_gateway.ui.ui_state import REQUESTS, UIState
from legato_protocol.followed_tokens import ServiceTokens

TOKEN = {"authorization": "Bearer secret"}
STATIC = resources.files("legato_gateway.ui") / "static"


async def _public(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"public {scope['path']}".encode()})


def _client(report, token="secret"):
    tokens, held = ServiceTokens(token), HeldWatch(lambda: 0)
    app = control.create(lambda: None, lambda: {"workers": []}, report, _public, tokens, lambda who: None, held)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


def _get(path, report=lambda since: {"since": since}, headers=TOKEN):
    async def get():
        async with _client(report) as client:
            return await client.get(path, headers=headers)

    return asyncio.run(get())


@pytest.mark.parametrize(
    "path", ["/ui/state", "/demand", "/state", "/v1/models", "/v1/chat/completions", "/ui/nothing"]
)
def test_without_the_token_nothing_but_the_page_is_served(path):
    assert _get(path, headers={}).status_code == 401
    assert _get(path, headers={"authorization": "Bearer other"}).status_code == 401


@pytest.mark.parametrize("path", sorted(routes.OPEN))
def test_the_page_is_served_to_browsers_which_send_no_token_with_a_strict_policy(path):
    answer = _get(path, headers={})
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
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


def test_the_scripts_are_small_enough_to_be_read():
    assert sum(len((STATIC / name).read_text().splitlines()) for name in routes.FILES if name.endswith(".js")) < 600


def test_the_api_of_the_playground_is_the_public_one():
    assert _get("/v1/models").text == "public /v1/models"
    assert _get("/healthz").status_code == 404


def test_the_gateway_s_whole_state_is_told():
    assert _get("/state").json() == {"workers": []}


def test_state_is_asked_with_the_time_up_to_which_samples_are_known():
    assert _get("/ui/state").json() == {"since": 0.0}
    assert _get("/ui/state?since=12.5").json() == {"since": 12.5}


@pytest.mark.parametrize("since", ["x", "nan", "inf", ""])
def test_a_time_that_is_none_is_refused(since):
    answer = _get(f"/ui/state?since={since}")
    assert answer.status_code == 400
    assert "not a time" in answer.json()["error"]


def _shown(gateway, wall=lambda: 100.0):
    samples = LoadSampler(gateway.fleet, gateway.relay, wall)
    return samples, UIState("gateway-1", ServedModel("m", 4096), gateway.state.state, gateway.relay, samples, wall)


async def test_state_tells_workers_samples_and_where_the_time_of_a_request_went(lab):
    async with lab.running(lab.pools(1, 1)) as gateway:
        await gateway.submit(seed=7).read()
        samples, shown = _shown(gateway)
        await gateway.until(lambda: "handoff" in gateway.history.records[0].seconds)
        samples.sample()
        report = json.loads(json.dumps(shown.report(0.0)))
        assert report["service"] is None
        (told,) = report["gateways"]
        assert told["gateway"] == "gateway-1"
        assert told["time"] == 100.0
        assert told["model"] == {"name": "m", "context": 4096}
        assert told["active"] == 0
        assert {(worker["worker"], worker["role"]) for worker in told["workers"]} == {
            ("p0", "prefill"),
            ("d0", "decode"),
        }
        (request,) = told["requests"]
        assert request["workers"] == ["p0", "d0"]
        assert set(request["seconds"]) == {"queue", "prefill", "handoff", "first_token", "total"}
        (sample,) = told["samples"]
        assert sample["time"] == 100.0
        assert sample["pools"]["decode"]["ready"] == 1
        assert sample["pools"]["decode"]["total_blocks"] == 10_000
        assert shown.report(100.0)["gateways"][0]["samples"] == []


async def test_recent_requests_hold_no_prompt_and_no_answer(lab):
    """Neither as text nor as token ids."""
    async with lab.running(lab.unified(1)) as gateway:
        prompt = tuple(range(100, 220))
        reader = await gateway.submit(prompt=prompt, seed=7).read()
        _, shown = _shown(gateway)
        text = json.dumps(shown.report(0.0))
        assert reader.text not in text
        assert reader.text[:8] not in text
        assert "101, 102, 103" not in text


async def test_the_list_of_requests_is_bounded_and_keeps_the_last(lab):
    async with lab.running(lab.unified(1)) as gateway:
        for number in range(REQUESTS + 3):
            await gateway.submit(id=f"r{number}", max_tokens=1).read()
        _, shown = _shown(gateway)
        found = [request["id"] for request in shown.report(0.0)["gateways"][0]["requests"]]
        assert found == [f"r{number}" for number in range(3, REQUESTS + 3)]


async def test_a_stopped_request_shows_how_long_it_took(lab):
    async with lab.running(lab.unified(1)) as gateway:
        (worker,) = gateway.workers
        worker.hold("decoding", after=3)
        reader = gateway.submit()
        await worker.wait_at("decoding")
        await reader.generation.cancel()
        assert gateway.history.records[0].seconds["total"] > 0
