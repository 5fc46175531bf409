"""One manifest on a laptop: prefill and decode in separate processes, scaled and edited."""

from collections.abc import Callable

import httpx
import pytest

CHAT = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def service(shared_service: Callable[..., object]):
    return shared_service(chunk=64)


def test_the_capital_of_france_comes_by_hand_off(service) -> None:
    answer = service.client.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=CHAT,
        temperature=0,
        extra_headers={"x-legato-explain": "true"},
        extra_body={"cache_salt": "of nobody else"},
    )
    assert "Paris" in answer.parse().choices[0].message.content
    route = httpx.Response(200, text=answer.headers["x-legato-route"]).json()
    assert (route["prefill"], route["decode"]) == ("test-prefill-0", "test-decode-0")
    assert route["transport"].startswith("ucx")
    (handoff,) = service.record(answer.parse().id)["handoffs"]
    assert handoff["source"] == "test-prefill-0"
    assert handoff["blocks"] >= 1
    assert handoff["bytes"] == handoff["blocks"] * 16 * 30 * 2 * 3 * 64 * 4


def test_it_is_described_in_words(service) -> None:
    told = service.until(lambda: _described(service), "it is ready, whatever befell it in other tests")
    assert f"  serves smollm2 at {service.url}/v1\n" in told
    assert "  decode: 1 of 1 ready, 1 desired\n" in told
    assert any(line.split()[0] == "test-decode-0" and line.endswith("  ready") for line in told.splitlines()[1:])
    assert "  AllReady" in told.split("Events:\n")[1]


def _described(service) -> str | None:
    told = service.command("describe").stdout
    return told if "  Ready is True (AllReady) since " in told else None


def test_scaling_and_editing_take_effect_while_it_runs(service) -> None:
    scaled = service.command("scale", "decode", "2")
    assert scaled.returncode == 0, scaled.stderr
    service.until(lambda: len(service.workers("decode")) == 2, "a second decode worker is there")
    good, before = service.file.read_text(), len(service.log())
    service.file.write_text(good.replace("blockSize: 16", "blockSize: sixteen"))
    _until_said(service, before, "change rejected")
    service.file.write_text(good.replace("builtin: smollm2-135m-instruct", "path: /no/such/model"))
    _until_said(service, before, "no such file or folder")
    service.file.write_text(good.replace("decode: {min: 1, max: 4}", "decode: {min: 1, max: 1}"))
    _until_said(service, before, "change applied")
    service.until(lambda: len(service.workers("decode")) == 1, "the second decode worker is gone")
    scaled = service.command("scale", "decode", "1")  # or the second would be back once there may be four again
    assert scaled.returncode == 0, scaled.stderr
    before = len(service.log())
    service.file.write_text(good)
    _until_said(service, before, "change applied")


def _until_said(service, begin: int, text: str) -> None:
    """In the log, from that character on."""
    service.until(lambda: text in service.log()[begin:], f"it is told: {text}")


def test_a_taken_port_is_refused_by_name(service) -> None:
    port = service.url.rsplit(":", 1)[1]
    refused = service.command("up", "-f", str(service.file), "--port", port)
    assert refused.returncode == 2
    assert f"port {port} is in use" in refused.stderr
