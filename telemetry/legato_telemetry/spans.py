"""The one door to OpenTelemetry: spans are made here, and sent by a thread that nothing waits for.

What waits to be sent is bounded (OTEL_BSP_MAX_QUEUE_SIZE), and what is beyond it is dropped: a collector that is down
or slow costs spans, never requests.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Kind = Literal["server", "client", "internal"]
Attribute = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Attribute]

LAST_SENDING = 2.0  # seconds that the end of a process waits for a collector
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_TRACE_CONTEXT = TraceContextTextMapPropagator()


class OpenSpan:
    """A span that is recorded and has not ended."""

    def __init__(self, span: trace.Span) -> None:
        self.span = span

    @property
    def traceparent(self) -> str:
        """What its children name as their parent, in another process too (W3C Trace Context)."""
        context = self.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Something that happens now."""
        self.span.add_event(name, attributes)

    def fail(self, code: str) -> None:
        """It ends with this error."""
        self.span.set_attribute("error.type", code)
        self.span.set_status(Status(StatusCode.ERROR, code))

    def end(self, at: int | None = None) -> None:
        """Now, or at a time in nanoseconds of the Unix epoch."""
        self.span.end(at)


class Tracing:
    """All spans of one process. `log` is told in words when spans cannot be sent, once, and when they can be again.

    Endpoint, headers, sampler and limits come from the standard environment variables.
    """

    def __init__(self, service: str, instance: str, log: Callable[[str], None]) -> None:
        own = {"service.name": service, "service.namespace": "legato", "service.instance.id": instance}
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Sender(OTLPSpanExporter(), log)))
        self._tracer = self._provider.get_tracer("legato")

    def start(
        self,
        name: str,
        kind: Kind,
        parent: str,
        attributes: Attributes | None = None,
        links: Sequence[OpenSpan] = (),
        at: int | None = None,
        state: str = "",
    ) -> OpenSpan | None:
        """A span below the one that `parent` and `state` name as traceparent and tracestate (W3C Trace Context), or the
        first of a trace where they name none. None where the sampler does not want it. `at` is in nanoseconds of the
        Unix epoch; now, if not given."""
        linked = [Link(link.span.get_span_context()) for link in links]
        context = _TRACE_CONTEXT.extract({"traceparent": parent, "tracestate": state}, Context())
        span = self._tracer.start_span(name, context, _KINDS[kind], attributes, linked, at)
        return OpenSpan(span) if span.is_recording() else None

    def close(self) -> None:
        """Sends what waits, for `LAST_SENDING` seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-closing", daemon=True)
        closing.start()
        closing.join(LAST_SENDING)


class _Sender(SpanExporter):
    """Tells of failures once. What the exporter itself logs, on every try, is only kept as the reason."""

    def __init__(self, exporter: SpanExporter, log: Callable[[str], None]) -> None:
        self._exporter = exporter
        self._log = log
        self._failing = False
        self._reasons = _LastMessage()
        library = logging.getLogger("opentelemetry")
        library.handlers, library.propagate = [self._reasons], False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            self._log(f"traces cannot be sent, and are dropped until they can: {self._reasons.text}")
        elif self._failing and not failing:
            self._log("traces are sent again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _LastMessage(logging.Handler):
    text = "no reason was given"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
