"""Makes spans of the phases that the core reports. The server sends them, so that the core never waits for it.

A span's parent is the gateway's attempt, whose `traceparent` is part of the request.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from legato_engine.core.frames import PhaseName, TracedPhase

if TYPE_CHECKING:
    from legato_telemetry.spans import Kind, Tracing

_KINDS: "dict[PhaseName, Kind]" = {
    "queue": "internal",
    "prefill": "server",
    "kv_fetch": "internal",
    "handoff": "internal",
    "decode": "server",
}
_ATTRIBUTES = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "choice": "legato.choice",
    "finish": "legato.finish_reason",
    "source": "legato.handoff.source",
    "bytes": "legato.handoff.bytes",
    "blocks": "legato.handoff.blocks",
    "cached_blocks": "legato.handoff.cached_blocks",
}


class PhaseSpans:
    """The spans of one worker, with its name and role."""

    def __init__(self, tracing: "Tracing", worker: str, role: str) -> None:
        self._tracing = tracing
        self._own = {"legato.worker": worker, "legato.role": role}

    def add(self, phases: Iterable[TracedPhase]) -> None:
        """Makes a span of each phase. Core and server read the same monotonic clock of their machine."""
        epoch = time.time() - time.monotonic()
        for phase in phases:
            details = {_ATTRIBUTES[key]: value for key, value in phase.details.items()}
            began, ended = (round((epoch + at) * 1e9) for at in (phase.began, phase.ended))
            name, kind = f"legato.{phase.name}", _KINDS[phase.name]
            span = self._tracing.start(name, kind, phase.trace, {**self._own, **details}, at=began)
            if span is None:
                continue
            if phase.error:
                span.fail(phase.error)
            span.end(ended)
