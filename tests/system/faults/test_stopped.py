"""A decode worker that stands still for a while under many streams: they wait for it, and nothing is recomputed."""

import signal
from typing import Any

import pytest
from answers import assert_same

STREAMS = 8
ASK = {"max_tokens": 40, "temperature": 0, "logprobs": 2, "extra_body": {"ignore_eos": True}}
STOPPED = {"core": slice(1, None), "server": slice(0, 1), "both": slice(0, None)}


def _ask(service: Any) -> list[Any]:
    return [service.stream(f"Story {i}: a fox walks to the river.", **ASK) for i in range(STREAMS)]


@pytest.fixture(scope="module")
def calm(service: Any) -> list[Any]:
    service.scale("decode", 1)
    streams = _ask(service)
    for stream in streams:
        assert stream.result()
    return streams


@pytest.mark.parametrize("part", STOPPED)
def test_streams_wait_for_a_worker_that_stands_still(service: Any, calm: list[Any], part: str) -> None:
    service.until_idle()
    (worker,) = service.workers("decode")
    name, earlier = worker["worker"], {record["id"] for record in service.state()["requests"]}
    stopped = service.processes(name)[STOPPED[part]]
    streams = _ask(service)
    service.until(lambda: all(stream.chunks > 3 for stream in streams), "all are decoding")
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        service.until(lambda: service.worker(name)["connection"] == "silent", "the gateway has noticed")
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    for found, expected in zip(streams, calm, strict=True):
        assert_same(found, expected)
    records = [record for record in service.state()["requests"] if record["id"] not in earlier]
    assert [record["attempt"] for record in records] == [1] * STREAMS
    assert service.epoch(name) == worker["epoch"]
    service.until_connected(name)
