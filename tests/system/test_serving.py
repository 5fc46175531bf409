"""One manifest on a laptop: the official client against prefill and decode in separate processes."""

import signal
from collections.abc import Callable

import httpx
import openai
import psutil
import pytest

CHAT = [{"role": "user", "content": "What is the capital of France?"}]


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


def test_streaming_ends_with_usage(service) -> None:
    chunks = list(
        service.client.chat.completions.create(
            model="smollm2", messages=CHAT, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = service.client.chat.completions.create(model="smollm2", messages=CHAT, temperature=0)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    assert whole.choices[0].finish_reason == "stop"


def test_logprobs_are_those_of_the_tokens_shown(service) -> None:
    answer = service.client.chat.completions.create(
        model="smollm2", messages=CHAT, temperature=0, logprobs=True, top_logprobs=3, max_tokens=5
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens == 5
    assert b"".join(bytes(t.bytes) for t in content).decode() == answer.choices[0].message.content
    for token in content:
        assert token.top_logprobs[0].token == token.token  # greedy takes the best one
        assert [t.logprob for t in token.top_logprobs] == sorted((t.logprob for t in token.top_logprobs), reverse=True)


def test_stop_strings_cut_the_text(service) -> None:
    ask = {"model": "smollm2", "prompt": "1, 2, 3, 4, 5,", "max_tokens": 30, "temperature": 0}
    whole = service.client.completions.create(**ask).choices[0].text
    stop = whole[12:16]
    cut = service.client.completions.create(**ask, stop=[stop, "never there"]).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_choices_share_a_prompt_and_repeat_by_seed(service) -> None:
    ask = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 1.0, "n": 3, "seed": 5}
    first = [c.text for c in service.client.completions.create(**ask).choices]
    again = [c.text for c in service.client.completions.create(**ask).choices]
    assert first == again
    assert len(set(first)) == 3
    other = service.client.completions.create(**{**ask, "seed": 6}).choices
    assert first != [c.text for c in other]


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "gpt-7"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, openai.BadRequestError, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
    ],
)
def test_bad_requests_are_errors_of_openais_shape(service, change, error, param) -> None:
    with pytest.raises(error) as raised:
        service.client.chat.completions.create(**{"model": "smollm2", "messages": CHAT, **change})
    assert raised.value.body["param"] == param
    assert raised.value.body["message"]


def test_cancelling_mid_stream_stops_the_work_and_frees_its_blocks(service) -> None:
    stream = service.client.completions.create(
        model="smollm2", prompt="A long story:", max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    assert any(worker["running"] for worker in service.workers())
    stream.close()
    service.until_idle()
    (cancelled,) = [r for r in service.state()["requests"] if r["finish"] == "cancelled"]
    assert cancelled["decode"] == "test-decode-0"


def test_a_deadline_ends_a_request_with_a_typed_error(service) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        service.client.completions.create(
            model="smollm2",
            prompt="A long story:",
            max_tokens=3000,
            extra_body={"ignore_eos": True},
            extra_headers={"x-legato-deadline": "2s"},
        )
    assert raised.value.status_code == 504
    assert "decode" in raised.value.body["message"]
    service.until_idle()


def test_scaling_and_editing_take_effect_while_it_runs(service) -> None:
    scaled = service.command("scale", "decode", "2")
    assert scaled.returncode == 0, scaled.stderr
    service.until(lambda: len(service.workers("decode")) == 2, "a second decode worker is there")
    good = service.file.read_text()
    service.file.write_text(good.replace("blockSize: 16", "blockSize: sixteen"))
    service.until(lambda: "the edit is not used" in service.log(), "the bad edit is reported")
    service.file.write_text(good.replace("decode: {min: 1, max: 4}", "decode: {min: 1, max: 1}"))
    service.until(lambda: "the edit is applied" in service.log(), "the good edit is used")
    service.until(lambda: len(service.workers("decode")) == 1, "the second decode worker is gone")


def test_nothing_survives_the_death_of_legato_up(start) -> None:
    service = start(prefill=0)
    tree = psutil.Process(service.process.pid).children(recursive=True)
    assert len(tree) >= 3  # gateway, server, core
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive
    service.stop = lambda: None


def test_a_taken_port_is_refused_by_name(service) -> None:
    port = service.url.rsplit(":", 1)[1]
    refused = service.command("up", "-f", str(service.file), "--port", port)
    assert refused.returncode == 2
    assert f"port {port} is taken" in refused.stderr
