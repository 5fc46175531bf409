"""One manifest on a laptop: prefill and decode in separate processes, scaled, edited and ended."""

import signal
from collections.abc import Callable

import httpx
import psutil
import pytest

CHAT = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def service(start: Callable[..., object]):
    return start()


def test_the_capital_of_france_comes_by_hand_off(service) -> None:
    answer = service.client.chat.completions.with_raw_response.create(
        model="smollm2", messages=CHAT, temperature=0, extra_headers={"x-legato-explain": "true"}
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
    told = service.command("describe").stdout
    assert f"  serves smollm2 at {service.url}/v1\n" in told
    assert "  Ready is True (AllReady) since " in told
    assert "  decode: 1 of 1 ready, 1 desired\n" in told
    assert any(line.split()[0] == "test-decode-0" and line.endswith("  ready") for line in told.splitlines()[1:])
    assert "  AllReady" in told.split("Events:\n")[1]


def test_scaling_and_editing_take_effect_while_it_runs(service) -> None:
    scaled = service.command("scale", "decode", "2")
    assert scaled.returncode == 0, scaled.stderr
    service.until(lambda: len(service.workers("decode")) == 2, "a second decode worker is there")
    good = service.file.read_text()
    service.file.write_text(good.replace("blockSize: 16", "blockSize: sixteen"))
    service.until(lambda: "change rejected" in service.log(), "the bad edit is reported")
    service.file.write_text(good.replace("builtin: smollm2-135m-instruct", "path: /no/such/model"))
    service.until(lambda: "no such file or folder" in service.log(), "an edit to a model that is not there is reported")
    service.file.write_text(good.replace("decode: {min: 1, max: 4}", "decode: {min: 1, max: 1}"))
    service.until(lambda: "change applied" in service.log(), "the good edit is used")
    service.until(lambda: len(service.workers("decode")) == 1, "the second decode worker is gone")


def test_a_taken_port_is_refused_by_name(service) -> None:
    port = service.url.rsplit(":", 1)[1]
    refused = service.command("up", "-f", str(service.file), "--port", port)
    assert refused.returncode == 2
    assert f"port {port} is in use" in refused.stderr


def test_nothing_survives_the_death_of_legato_up(service) -> None:
    """The last test: it ends the service of the others."""
    tree = psutil.Process(service.process.pid).children(recursive=True)
    assert len(tree) >= 5  # gateway, and two workers of a server and a core
    service.stop = lambda: None
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive
