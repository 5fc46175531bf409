"""Spans of requests that start over, migrate or fail; tests/system/test_tracing.py has the undisturbed ones."""

import contextlib

import pytest
from trace_receiver import receiving

from legato_gateway.errors import GatewayError
from legato_gateway.relay.records.trace import RequestTracer
from legato_gateway.testing.fake_engine import ScriptedRefusal
from legato_protocol.wire.stream import Decode, Generate, Handoff
from legato_telemetry.spans import Tracing

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced(lab, monkeypatch):
    """Runs a gateway among workers with a tracer; the value of the context receives the spans when it ends."""

    @contextlib.asynccontextmanager
    async def running(workers):
        tracing = Tracing("gateway", "g", pytest.fail)
        async with lab.running(workers, tracer=RequestTracer(tracing, "m")) as gateway:
            yield gateway, receiver
        tracing.close()

    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield running


def _spans(receiver):
    """The span of the request, and those of its attempts in order."""
    (request,) = receiver.named("text_completion m")
    attempts = receiver.named("legato.attempt")
    return request, *sorted(attempts, key=lambda span: span.attributes["legato.attempt"])


async def test_an_attempt_that_fails_is_followed_by_one_that_links_to_it(lab, traced):
    async with traced(lab.unified(2)) as (gateway, receiver):
        for worker in gateway.workers:
            worker.hold("decoding", after=4)
        reader = gateway.submit(max_tokens=10, trace=TRACE)
        await gateway.until(lambda: any(worker.engine.at("decoding") for worker in gateway.workers))
        source = next(worker for worker in gateway.workers if worker.engine.jobs)
        for worker in gateway.workers:
            worker.release()
        await source.kill()
        await reader.read()
        assert reader.text == lab.text_of(7, 10)
        frames = [frame for worker in gateway.workers for frame in worker.got(Generate)]
        traces = {frame.attempt: frame.sequence.trace.split("-")[2] for frame in frames}
    request, first, second = _spans(receiver)
    assert (first.error, first.attributes["legato.decode.worker"]) == ("peer_lost", source.name)
    assert (second.error, second.links) == ("", [first.id])
    assert first.parent == second.parent == request.id
    assert traces == {1: first.id, 2: second.id}
    assert ("redispatch", {"error.type": "peer_lost", "legato.attempt": 1}) in request.events
    assert (request.error, request.attributes["gen_ai.usage.output_tokens"]) == ("", 10)


async def test_a_migration_is_an_attempt_of_its_own(lab, traced):
    async with traced(lab.pools(1, 2)) as (gateway, receiver):
        reader = gateway.submit(max_tokens=400, trace=TRACE)
        reader.take(await anext(reader.generation))
        source = lab.worker(gateway, reader.generation.route.decode)
        await source.drain()
        await reader.read()
        assert reader.text == lab.text_of(7, 400)
        target = lab.worker(gateway, reader.generation.route.decode)
        assert target.got(Decode)[-1].sequence.trace
        assert len(source.got(Handoff)) == 1
        assert not source.engine.jobs
    request, first, second = _spans(receiver)
    assert (first.error, second.error, second.links) == ("", "", [first.id])
    assert second.began <= first.ended <= second.ended
    assert first.attributes["legato.decode.worker"] != second.attributes["legato.decode.worker"]
    assert ("migration", {"legato.attempt": 2, "legato.migration.reason": "draining"}) in request.events


async def test_a_request_that_ends_by_an_error_has_its_code_and_one_without_a_trace_has_no_spans(lab, traced):
    async with traced(lab.unified(1)) as (gateway, receiver):
        await gateway.submit().read()
        (frame,) = gateway.workers[0].got(Generate)
        assert frame.sequence.trace == ""
        gateway.workers[0].engine.refusals.extend(ScriptedRefusal("invalid", retry=False) for _ in range(2))
        with pytest.raises(GatewayError):
            await gateway.submit(trace=TRACE).read()
    request, attempt = _spans(receiver)
    assert request.error == request.attributes["error.type"] == attempt.error == "worker_failed"
    assert "gen_ai.response.finish_reasons" not in request.attributes
