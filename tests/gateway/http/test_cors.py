"""Web pages that may call the API."""

from typing import Any

import pytest

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}


def of_cors(answer: Any) -> set[str]:
    return {name for name in answer.headers if name.startswith("access-control-")}


async def test_without_a_setting_no_page_may(gateway):
    assert of_cors(await gateway.chat({"origin": PAGE})) == set()
    answer = await gateway.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert (answer.status_code, of_cors(answer)) == (405, set())


@pytest.mark.parametrize(("origins", "told"), [((PAGE, "http://localhost:3000"), PAGE), (("*",), "*")])
async def test_pages_that_are_set_may_without_credentials(make, origins, told):
    gateway = make(allowed_origins=origins)
    preflight = await gateway.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == told
    assert preflight.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for answer in (preflight, await gateway.chat({"origin": PAGE}), await gateway.chat({"origin": PAGE}, stream=True)):
        assert answer.headers["access-control-allow-origin"] == told
        assert "access-control-allow-credentials" not in answer.headers
        assert told == "*" or "origin" in answer.headers["vary"].lower(), "caches tell pages apart"


async def test_streams_and_errors_can_be_read_with_their_headers(make):
    """A browser keeps an answer without these headers from the script, which then knows of no status and no error."""
    gateway = make(allowed_origins=(PAGE,))
    stream, wrong = await gateway.chat({"origin": PAGE}, stream=True), await gateway.chat({"origin": PAGE}, n=0)
    gateway.script(RuntimeError("a fault of ours"))
    message = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    faulty = await gateway.http.post("/v1/messages", json=message, headers={"origin": PAGE})
    assert "failed to handle this request" in faulty.json()["error"]["message"]
    for answer, status in ((stream, 200), (wrong, 400), (faulty, 500)):
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "x-legato-drop-reason", "x-legato-route"} <= set(exposed)
    assert [entry.status for entry in gateway.entries] == [200, 400, 500]


async def test_other_pages_may_not(make):
    gateway = make(allowed_origins=(PAGE,))
    for origin in ("https://evil.example.com", "https://chat.example.com.evil.com", "http://chat.example.com", "null"):
        assert "access-control-allow-origin" not in (await gateway.chat({"origin": origin})).headers
        answer = await gateway.http.options("/v1/chat/completions", headers={**PREFLIGHT, "origin": origin})
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers
