"""One trace from the client through gateway, prefill worker and decode worker: real processes, and a collector that
decodes what they send."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from trace_receiver import ReceivedSpan, TraceReceiver, receiving
from worker_process import TOKEN, Process, start, until

PROFILE = """{"source": "a test", "kvTokens": 4096, "startSeconds": 0, "step":
{"perStep": 0.004, "perRow": 1e-4, "perContext": 1e-8, "perToken": 1e-5, "perPair": 1e-9}}"""
MODEL = "builtin:smollm2-135m-instruct"
SECRET = "zanzibar"
PROMPT = f"{SECRET} " * 60
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
INTERNAL, SERVER, CLIENT = 1, 2, 3


@dataclass
class Fleet:
    """A gateway with one prefill and one decode worker, whose tokens are paced."""

    url: str
    gateway: subprocess.Popen[bytes]
    workers: dict[str, Process]
    log: Path

    def post(self, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        salt = secrets.token_hex(4)  # no prompt is in a cache, so each goes to the prefill worker
        asked = {"model": "m", "prompt": PROMPT, "max_tokens": 5, "cache_salt": salt} | body
        return httpx.post(f"{self.url}/v1/completions", json=asked, headers=headers, timeout=60, trust_env=False)

    def stop(self) -> None:
        for process in (self.gateway, *(worker.popen for worker in self.workers.values())):
            process.kill()
            process.wait()


def _fleet(folder: Path, *flags: str) -> Fleet:
    profile = folder / "profile.json"
    profile.write_text(PROFILE)
    workers = {}
    for name, role in (("p0", "prefill"), ("d0", "decode")):
        (folder / name).mkdir()
        own = ("--name", name, "--role", role, "--transport", "TCP", "--runner", "paced", "--profile", str(profile))
        workers[name] = start(folder / name, *own)
    announce, log = folder / "gateway.json", folder / "gateway.log"
    command = [sys.executable, "-m", "legato_cli.main", "gateway", "--model", MODEL, "--served-name", "m"]
    command += ["--max-length", "512", "--port", "0", "--control-port", "0", "--announce", str(announce), *flags]
    for name, worker in workers.items():
        command += ["--worker", f"{name}=127.0.0.1:{worker.ports['control']}"]
    with log.open("wb") as file:
        gateway = subprocess.Popen(command, stderr=file, stdout=file, env=os.environ | {"LEGATO_TOKEN": TOKEN})
    until(lambda: announce.exists() or gateway.poll() is not None)
    ports = json.loads(announce.read_text())
    url, control = (f"http://127.0.0.1:{ports[name]}" for name in ("http", "control"))
    fleet = Fleet(url, gateway, workers, log)

    def connected() -> bool:
        headers = {"authorization": f"Bearer {TOKEN}"}
        state = httpx.get(f"{control}/state", headers=headers, trust_env=False).json()
        return [worker.get("role", "") for worker in state["workers"]].count("") == 0 and len(state["workers"]) == 2

    until(connected)
    return fleet


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[TraceReceiver, contextlib.ExitStack]]:
    """One that is there until the stack is closed."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(receiving()), stack


@pytest.fixture(scope="module")
def traced(collector: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, TraceReceiver]]:
    receiver, _ = collector
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "32")
        patch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
        fleet = _fleet(tmp_path_factory.mktemp("traced"))
    yield fleet, receiver
    fleet.stop()


def _of(receiver: TraceReceiver, trace: str, least: int) -> dict[str, ReceivedSpan]:
    """The spans of that trace by name, once there are so many."""
    until(lambda: len([span for span in receiver.spans if span.trace == trace]) >= least, 30)
    return {span.name: span for span in receiver.spans if span.trace == trace}


def test_one_trace_goes_from_the_client_through_gateway_and_both_workers(traced: tuple[Fleet, TraceReceiver]) -> None:
    fleet, receiver = traced
    answer = fleet.post({"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert answer.status_code == 200
    spans = _of(receiver, TRACE, 9)
    http, request, attempt = (spans[name] for name in ("POST /v1/completions", "text_completion m", "legato.attempt"))
    assert (http.parent, http.kind) == (PARENT, SERVER)
    assert (request.parent, request.kind) == (http.id, INTERNAL)
    assert (attempt.parent, attempt.kind) == (request.id, CLIENT)
    assert spans["legato.admission"].parent == request.id
    of_workers = [span for span in receiver.spans if span.trace == TRACE and "legato.worker" in span.attributes]
    assert {span.parent for span in of_workers} == {attempt.id}
    assert sorted((span.name, span.attributes["legato.worker"]) for span in of_workers) == [
        ("legato.decode", "d0"),
        ("legato.handoff", "d0"),
        ("legato.prefill", "p0"),
        ("legato.queue", "d0"),
        ("legato.queue", "p0"),
    ]
    assert {span.resource["service.name"] for span in of_workers} == {"legato-worker"}
    assert {span.resource["service.instance.id"] for span in of_workers} == {"p0", "d0"}
    assert http.resource["service.name"] == "legato-gateway"


def test_spans_lie_within_their_parents_and_follow_one_another(traced: tuple[Fleet, TraceReceiver]) -> None:
    fleet, receiver = traced
    trace = TRACE[::-1]
    fleet.post({"traceparent": f"00-{trace}-{PARENT}-01"})
    spans = _of(receiver, trace, 9)
    by_id = {span.id: span for span in spans.values()}
    for span in spans.values():
        assert span.began <= span.ended
        if span.parent in by_id:
            assert by_id[span.parent].began <= span.began
    prefill, handoff, decode = (spans[f"legato.{name}"] for name in ("prefill", "handoff", "decode"))
    assert prefill.ended <= handoff.ended <= decode.began + 1_000_000
    assert prefill.ended - prefill.began >= 4_000_000  # a step of the profile
    assert decode.ended - decode.began >= 4 * 4_000_000  # the first token came by the hand-off


def test_attributes_are_those_of_the_conventions_and_no_text(traced: tuple[Fleet, TraceReceiver]) -> None:
    fleet, receiver = traced
    trace = "1" * 32
    answer = fleet.post({"traceparent": f"00-{trace}-{PARENT}-01"}, user=SECRET, temperature=0.5).json()
    spans = _of(receiver, trace, 9)
    usage = answer["usage"]
    told = spans["text_completion m"].attributes
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.provider.name"] == "legato"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "m"
    assert told["gen_ai.response.id"] == answer["id"]
    assert told["gen_ai.request.max_tokens"] == 5
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 5
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    assert told["gen_ai.latency.time_to_first_token"] == told["gen_ai.response.time_to_first_chunk"]
    assert spans["POST /v1/completions"].attributes["http.response.status_code"] == 200
    attempt = spans["legato.attempt"]
    assert attempt.attributes["legato.prefill.worker"] == "p0"
    assert attempt.attributes["legato.decode.worker"] == "d0"
    assert "first_token" in [name for name, _ in attempt.events]
    assert spans["legato.decode"].attributes["legato.finish_reason"] == "length"
    assert spans["legato.handoff"].attributes["legato.handoff.source"] == "p0"
    assert spans["legato.handoff"].attributes["legato.handoff.bytes"] > 0
    assert not any(SECRET.encode() in body for body in receiver.raw)
    assert answer["choices"][0]["text"].strip()
    assert not any(answer["choices"][0]["text"].encode() in body for body in receiver.raw)


def test_a_client_that_does_not_want_a_trace_gets_none(traced: tuple[Fleet, TraceReceiver]) -> None:
    fleet, receiver = traced
    assert fleet.post({"traceparent": f"00-{'2' * 32}-{PARENT}-00"}).status_code == 200
    assert fleet.post({"traceparent": f"00-{'3' * 32}-{PARENT}-01"}).status_code == 200
    _of(receiver, "3" * 32, 9)  # later than the other, so that whatever came of that is here too
    assert not [span for span in receiver.spans if span.trace == "2" * 32]


def test_without_a_traceparent_a_trace_begins_here(traced: tuple[Fleet, TraceReceiver]) -> None:
    fleet, receiver = traced
    known = {span.trace for span in receiver.spans}
    fleet.post({"traceparent": "nonsense"})
    until(lambda: {span.trace for span in receiver.spans} - known)
    (trace,) = {span.trace for span in receiver.spans} - known
    assert _of(receiver, trace, 9)["POST /v1/completions"].parent == ""


def test_a_request_that_is_refused_has_a_span_with_its_status(traced: tuple[Fleet, TraceReceiver]) -> None:
    fleet, receiver = traced
    trace = "4" * 32
    assert fleet.post({"traceparent": f"00-{trace}-{PARENT}-01"}, max_tokens=-1).status_code == 400
    (span,) = _of(receiver, trace, 1).values()
    assert span.attributes["http.response.status_code"] == 400
    assert span.error == ""  # a client's fault is no error of the server's span


def test_an_error_of_the_request_is_in_its_span(traced: tuple[Fleet, TraceReceiver]) -> None:
    fleet, receiver = traced
    trace = "5" * 32
    headers = {"traceparent": f"00-{trace}-{PARENT}-01", "x-legato-deadline": "300ms"}
    assert fleet.post(headers, max_tokens=300).status_code == 504
    spans = _of(receiver, trace, 9)
    request = spans["text_completion m"]
    assert request.error == request.attributes["error.type"] == "deadline_exceeded"
    assert spans["legato.attempt"].error == "deadline_exceeded"
    assert spans["POST /v1/completions"].error == "504"


def test_a_collector_that_is_down_costs_spans_and_is_told_of_once(
    traced: tuple[Fleet, TraceReceiver], collector: tuple[TraceReceiver, contextlib.ExitStack]
) -> None:
    """More spans than are kept. The last test: the collector does not come back."""
    fleet, _ = traced
    collector[1].close()
    logs = [fleet.log, *(worker.log for worker in fleet.workers.values())]
    assert not any("traces cannot be sent" in log.read_text() for log in logs)
    assert fleet.post().status_code == 200
    until(lambda: all("traces cannot be sent" in log.read_text() for log in logs))
    for _ in range(12):
        assert fleet.post().status_code == 200
    fleet.gateway.terminate()
    assert fleet.gateway.wait(30) == 0
    for log in logs:
        assert log.read_text().count("traces cannot be sent") == 1
        assert "Traceback" not in log.read_text()
