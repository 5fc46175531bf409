"""Pools without workers: they go, and come when they are needed. They are paced: processes as ever, quick to start."""

import json
from collections.abc import Callable
from typing import Any

import psutil
import pytest

TOKENS = 8
PROFILE = {
    "source": "a test: a start that requests are held for",
    "step": {"perStep": 0.02, "perRow": 0, "perContext": 0, "perToken": 0, "perPair": 0},
    "kvTokens": 8192,
    "startSeconds": 2,
}


@pytest.fixture(scope="module")
def service(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """That is scaled to zero after two seconds."""
    profile = tmp_path_factory.mktemp("profile") / "quick.json"
    profile.write_text(json.dumps(PROFILE))
    bounds = "prefill: {min: 0, max: 1}, decode: {min: 0, max: 1}"
    scaling = f"{{{bounds}, idleAfter: 2s, scaleDownStabilization: 2s}}"
    return start(scaling=scaling, engine=f", runner: Paced, profile: {profile}")


def _until_zero(service: Any) -> None:
    service.until(lambda: not service.workers(), "the last worker is gone")
    service.until(lambda: "ScaledToZero" in service.command("status").stdout, "the service is at zero")


def _answers(service: Any, count: int) -> list[Any]:
    """Of as many requests at once."""
    streams = [service.stream(f"Number {i} is", TOKENS, temperature=0, logprobs=1) for i in range(count)]
    for stream in streams:
        stream.result()
    return streams


def test_requests_at_zero_are_held_and_answered(service: Any) -> None:
    _until_zero(service)
    assert service.http.get("/readyz").status_code == 200
    assert all(stream.finish for stream in _answers(service, 20))


def test_a_gateway_that_has_never_seen_a_worker_holds_them_too(service: Any) -> None:
    _until_zero(service)
    (gateway,) = [p for p in psutil.Process(service.process.pid).children() if "gateway" in p.cmdline()]
    gateway.kill()
    gateway.wait()
    (stream,) = _answers(service, 1)
    assert stream.finish
