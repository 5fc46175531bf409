"""One trace from the client through gateway, prefill worker and decode worker: real processes, and a collector that
decodes what they send."""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from paced_fleet import kill, start_gateway, start_worker
from trace_receiver import ReceivedSpan, TraceReceiver, receiving
from worker_process import Process, until

SECRET = "zanzibar"
PARENT = "b7ad6b7169203331"
INTERNAL, SERVER, CLIENT = 1, 2, 3


@dataclass
class Fleet:
    """A gateway with one prefill and one decode worker, whose tokens are paced, and the collector of their spans."""

    receiver: TraceReceiver
    closing: contextlib.ExitStack  # ends the collector
    workers: list[Process] = field(default_factory=list)

    def start(self, folder: Path) -> None:
        flags = []
        for name, role in (("p0", "prefill"), ("d0", "decode")):
            self.workers.append(start_worker(folder, name, "--role", role))
            flags += ["--worker", f"{name}=127.0.0.1:{self.workers[-1].ports['control']}"]
        self.gateway = start_gateway(folder, "gateway", *flags)
        until(lambda: [bool(worker.get("role")) for worker in self.gateway.state()["workers"]] == [True, True])

    def post(self, *headers: tuple[str, str], **body: Any) -> httpx.Response:
        salt = secrets.token_hex(4)  # no prompt is in a cache, so each goes to the prefill worker
        asked = {"model": "m", "prompt": f"{SECRET} " * 60, "max_tokens": 5, "cache_salt": salt} | body
        url = f"http://127.0.0.1:{self.gateway.ports['http']}/v1/completions"
        return httpx.post(url, json=asked, headers=dict(headers), timeout=60, trust_env=False)

    def spans(self, trace: str, least: int = 9) -> dict[str, ReceivedSpan]:
        """The spans of a trace by name, once there are so many."""
        until(lambda: sum(span.trace == trace for span in self.receiver.spans) >= least)
        return {span.name: span for span in self.receiver.spans if span.trace == trace}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        made = Fleet(stack.enter_context(receiving()), stack)
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.receiver.endpoint)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "32")
        patch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
        made.start(tmp_path_factory.mktemp("traced"))
        yield made
    kill(made.gateway, *made.workers)


def parent(trace: str, flags: str = "01") -> tuple[str, str]:
    return "traceparent", f"00-{trace}-{PARENT}-{flags}"


@pytest.fixture(scope="module")
def answer(fleet: Fleet) -> Any:
    """An answer whose trace is 1…1."""
    return fleet.post(parent("1" * 32), user=SECRET, temperature=0.5).raise_for_status().json()


@pytest.fixture(scope="module")
def spans(fleet: Fleet, answer: Any) -> dict[str, ReceivedSpan]:
    return fleet.spans("1" * 32)


def test_one_trace_goes_from_the_client_through_gateway_and_both_workers(
    fleet: Fleet, spans: dict[str, ReceivedSpan]
) -> None:
    http, request, attempt = (spans[name] for name in ("POST /v1/completions", "text_completion m", "legato.attempt"))
    assert (http.parent, http.kind, http.resource["service.name"]) == (PARENT, SERVER, "legato-gateway")
    assert (request.parent, request.kind) == (http.id, INTERNAL)
    assert (attempt.parent, attempt.kind) == (request.id, CLIENT)
    assert spans["legato.admission"].parent == request.id
    by_workers = [span for span in fleet.receiver.spans if span.trace == http.trace and span.parent == attempt.id]
    assert {span.resource["service.name"] for span in by_workers} == {"legato-worker"}
    instances = [(span.name, span.resource["service.instance.id"]) for span in by_workers]
    assert instances == [(span.name, span.attributes["legato.worker"]) for span in by_workers]
    assert sorted(instances) == [
        ("legato.decode", "d0"), ("legato.handoff", "d0"), ("legato.prefill", "p0"), ("legato.queue", "d0"),
        ("legato.queue", "p0"),
    ]  # fmt: skip


def test_attributes_are_those_of_the_conventions_and_no_text(
    fleet: Fleet, answer: Any, spans: dict[str, ReceivedSpan]
) -> None:
    request, attempt = spans["text_completion m"].attributes, spans["legato.attempt"]
    handoff = spans["legato.handoff"].attributes
    assert (
        request.items()
        >= {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "legato",
            "gen_ai.request.model": "m",
            "gen_ai.response.model": "m",
            "gen_ai.response.id": answer["id"],
            "gen_ai.request.max_tokens": 5,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
            "gen_ai.usage.output_tokens": answer["usage"]["completion_tokens"],
            "gen_ai.latency.time_to_first_token": request["gen_ai.response.time_to_first_chunk"],
        }.items()
    )
    assert request["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < request["gen_ai.latency.time_to_first_token"] <= request["gen_ai.latency.e2e"]
    assert spans["POST /v1/completions"].attributes["http.response.status_code"] == 200
    assert attempt.attributes.items() >= {"legato.prefill.worker": "p0", "legato.decode.worker": "d0"}.items()
    assert "first_token" in [name for name, _ in attempt.events]
    assert spans["legato.decode"].attributes["legato.finish_reason"] == "length"
    assert (handoff["legato.handoff.source"], handoff["legato.handoff.bytes"] > 0) == ("p0", True)
    text = answer["choices"][0]["text"]
    assert text.strip()
    assert not any(secret.encode() in body for body in fleet.receiver.raw for secret in (SECRET, text))


def test_a_collector_that_is_down_costs_spans_and_is_logged_once(fleet: Fleet) -> None:
    """More spans than are kept. The last test: the collector does not come back."""
    fleet.closing.close()
    processes, message = [fleet.gateway, *fleet.workers], "traces cannot be sent"
    assert not any(message in process.log.read_text() for process in processes)
    assert fleet.post().status_code == 200
    until(lambda: all(message in process.log.read_text() for process in processes))
    assert [fleet.post().status_code for _ in range(12)] == [200] * 12
    fleet.gateway.popen.terminate()
    assert fleet.gateway.popen.wait(90) == 0
    for log in (process.log.read_text() for process in processes):
        assert (log.count(message), "Traceback" in log) == (1, False)
