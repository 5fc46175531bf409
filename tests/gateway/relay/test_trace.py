"""Spans of requests that start over, migrate or fail; tests/system/test_tracing.py has the undisturbed ones."""

from collections.abc import Iterator

import pytest
from trace_receiver import TraceReceiver, receiving

from legato_gateway.errors import GatewayError
from legato_gateway.relay.trace import RequestTracer
from legato_gateway.testing.fake_engine import Refusal
from legato_protocol.stream import Decode, Generate
from legato_telemetry.spans import Tracing

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """A tracer, and what it has sent once it is closed."""

    def __init__(self, receiver: TraceReceiver) -> None:
        self._tracing = Tracing("gateway", "g", pytest.fail)
        self._receiver = receiver
        self.tracer = RequestTracer(self._tracing, "m")

    def spans(self) -> TraceReceiver:
        self._tracing.close()
        return self._receiver


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield Traced(receiver)


async def test_an_attempt_that_fails_is_followed_by_one_that_links_to_it(lab, traced):
    async with lab.running(lab.unified(2), tracer=traced.tracer) as gateway:
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
        traces = {frame.attempt: frame.sequence.trace for frame in frames}
    receiver = traced.spans()
    (request,) = receiver.named("text_completion m")
    first, second = sorted(receiver.named("legato.attempt"), key=lambda span: span.attributes["legato.attempt"])
    assert first.error == "peer_lost"
    assert first.attributes["legato.decode.worker"] == source.name
    assert (second.error, second.links) == ("", [first.id])
    assert first.parent == second.parent == request.id
    assert [traces[1].split("-")[2], traces[2].split("-")[2]] == [first.id, second.id]
    assert ("redispatch", {"error.type": "peer_lost", "legato.attempt": 1}) in request.events
    assert request.error == ""
    assert request.attributes["gen_ai.usage.output_tokens"] == 10


async def test_a_migration_is_an_attempt_of_its_own(lab, traced):
    async with lab.running(lab.pools(1, 2), tracer=traced.tracer) as gateway:
        reader = gateway.submit(max_tokens=400, trace=TRACE)
        reader.take(await anext(reader.generation))
        source = lab.worker(gateway, reader.generation.route.decode)
        await source.drain()
        await reader.read()
        target = lab.worker(gateway, reader.generation.route.decode)
        assert target.got(Decode)[-1].sequence.trace
    receiver = traced.spans()
    (request,) = receiver.named("text_completion m")
    first, second = sorted(receiver.named("legato.attempt"), key=lambda span: span.attributes["legato.attempt"])
    assert first.error == second.error == ""
    assert second.links == [first.id]
    assert second.began <= first.ended <= second.ended
    assert first.attributes["legato.decode.worker"] != second.attributes["legato.decode.worker"]
    assert ("migration", {"legato.attempt": 2, "legato.migration.reason": "draining"}) in request.events


async def test_a_request_that_ends_by_an_error_has_its_code(lab, traced):
    async with lab.running(lab.unified(1), tracer=traced.tracer) as gateway:
        gateway.workers[0].engine.refusals.extend(Refusal("invalid", retry=False) for _ in range(2))
        reader = gateway.submit(trace=TRACE)
        with pytest.raises(GatewayError):
            await reader.read()
    receiver = traced.spans()
    (request,) = receiver.named("text_completion m")
    assert request.error == request.attributes["error.type"] == "worker_failed"
    assert {span.error for span in receiver.named("legato.attempt")} == {"worker_failed"}
    assert "gen_ai.response.finish_reasons" not in request.attributes


async def test_a_request_without_a_trace_has_no_spans_and_its_workers_are_told_of_none(lab, traced):
    async with lab.running(lab.unified(1), tracer=traced.tracer) as gateway:
        await gateway.submit().read()
        (frame,) = gateway.workers[0].got(Generate)
        assert frame.sequence.trace == ""
    assert traced.spans().spans == []
