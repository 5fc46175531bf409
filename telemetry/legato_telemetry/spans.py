"""The only module that imports OpenTelemetry: it creates spans, and a background thread sends them.

The queue of spans is bounded (OTEL_BSP_MAX_QUEUE_SIZE) and drops spans when it is full: a collector that is down or
slow costs spans, never requests.
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

LAST_SENDING = 2.0  # seconds for which a process that ends waits for the collector
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_TRACE_CONTEXT = TraceContextTextMapPropagator()


class OpenSpan:
    """A recorded span that has not ended."""

    def __init__(self, span: trace.Span) -> None:
        self.span = span

    @property
    def traceparent(self) -> str:
        """The parent for its children, in another process too (W3C Trace Context)."""
        context = self.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """Adds an event at the current time."""
        self.span.add_event(name, attributes)

    def fail(self, code: str) -> None:
        """Sets the span's error."""
        self.span.set_attribute("error.type", code)
        self.span.set_status(Status(StatusCode.ERROR, code))

    def end(self, at: int | None = None) -> None:
        """Ends the span now, or at a time in nanoseconds since the Unix epoch."""
        self.span.end(at)


class Tracing:
    """All spans of one process. `log` gets one line when spans cannot be sent, and one when they can be sent again.

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
        """Starts a child of the span that `parent` and `state` name (traceparent and tracestate of W3C Trace Context),
        or a new trace without a parent. Returns None if the sampler drops it. `at` is in nanoseconds since the Unix
        epoch; the default is now."""
        linked = [Link(link.span.get_span_context()) for link in links]
        context = _TRACE_CONTEXT.extract({"traceparent": parent, "tracestate": state}, Context())
        span = self._tracer.start_span(name, context, _KINDS[kind], attributes, linked, at)
        return OpenSpan(span) if span.is_recording() else None

    def close(self) -> None:
        """Sends queued spans, for at most `LAST_SENDING` seconds."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-closing", daemon=True)
        closing.start()
        closing.join(LAST_SENDING)


class _Sender(SpanExporter):
    """Logs a failure once. The exporter's own log line, repeated on every attempt, is kept as the reason."""

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
