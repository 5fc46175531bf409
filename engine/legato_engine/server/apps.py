"""The two HTTP applications of a worker: health, without authentication, and control, with the service token."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.server import step_traces, transfer_port
from legato_engine.server.connections import GatewayConnections
from legato_engine.server.hub import CoreView, Hub
from legato_engine.settings import WorkerSettings
from legato_protocol.names import EVENTS_PATH, STREAM_PATH
from legato_protocol.process.followed_files import FollowedFiles
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire.kv_events import ARENA
from legato_protocol.wire.step_trace import TRACE_PATH

_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


def health(hub: Hub, tls: Sequence[FollowedFiles[Any]] = ()) -> Starlette:
    """`/healthz`, `/readyz`, `/metrics`; `tls` are the files of internal TLS.

    A draining worker stays ready: it keeps working, gateways send it no new requests, and it may be recalled.
    """

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        if hub.core is None:
            return PlainTextResponse(hub.phase + "\n", 503)
        return PlainTextResponse("stopping\n" if hub.stopping else "ready\n", 503 if hub.stopping else 200)

    async def metrics(_request: Request) -> Response:
        core = hub.core
        text = hub.metrics.exposition(
            core.status if core else None,
            ready=core is not None,
            gateways=hub.gateways,
            abandoned=transfer_port.abandoned(core.ready.hello.address) if core else 0,
            tls_invalid=any(files.problem for files in tls),
            kernel_fallback=bool(core and core.ready.fallback),
            transport_fallback=bool(core and core.transport_fallback),
        )
        return Response(text, media_type=_EXPOSITION)

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)],
    )


def control(
    hub: Hub,
    settings: WorkerSettings,
    tokens: ServiceTokens,
    drain: Callable[[], None],
    recall: Callable[[], bool],
    connections: GatewayConnections,
) -> Starlette:
    """`/stream`, `/events`, `GET /state`, `POST /profile`, `POST /drain` and `DELETE /drain`.

    `DELETE /drain` answers 409 once the process is stopping. `TokenAuth` has checked the token of all requests.
    """

    async def state(_request: Request) -> Response:
        return JSONResponse(state_of(hub, settings) | {"tokens": tokens.ids})

    async def post_drain(_request: Request) -> Response:
        drain()
        return JSONResponse({"draining": True}, 202)

    async def delete_drain(_request: Request) -> Response:
        recalled = recall()
        return JSONResponse({"draining": hub.draining}, 200 if recalled else 409)

    return Starlette(
        routes=[
            Route("/state", state),
            Route(TRACE_PATH, step_traces.endpoint(hub.record), methods=["POST"]),
            Route("/drain", post_drain, methods=["POST"]),
            Route("/drain", delete_drain, methods=["DELETE"]),
            WebSocketRoute(STREAM_PATH, connections.stream),
            WebSocketRoute(EVENTS_PATH, connections.events),
        ],
    )


def state_of(hub: Hub, settings: WorkerSettings) -> dict[str, Any]:
    """The answer of `/state`."""
    state: dict[str, Any] = {
        "worker": settings.name,
        "role": settings.role,
        "model": settings.model,
        "pod_revision": settings.pod_revision,
        "phase": hub.phase,
        "draining": hub.draining,
        "stopping": hub.stopping,
        "gateways": hub.gateways,
    }
    if hub.adapters is not None:
        state["adapters"] = _state_of_adapters(hub)
    return state | _state_of_core(hub.core) if hub.core else state


def _state_of_adapters(hub: Hub) -> dict[str, Any]:
    """State of adapters: id of the list, digests of offered ones by name, problems of others, and loaded digests."""
    core = hub.core
    offer = (core.offer if core else None) or AdapterOffer("")
    loaded = core.status.load.adapters if core and core.status else ()
    return {"list": offer.list, "offered": offer.adapters, "problems": offer.problems, "loaded": loaded}


def _state_of_core(core: CoreView) -> dict[str, Any]:
    hello = core.ready.hello
    state: dict[str, Any] = {
        "epoch": hello.epoch,
        "kv_revision": hello.kv_revision,
        "weights": hello.weights,
        "layout": hello.layout,
        "formats": core.ready.formats,
        "fallback": core.ready.fallback,
        "transport": hello.transport,
        "transport_reason": core.transport_reason,
        "transport_fallback": core.transport_fallback,
        "block_size": hello.block_size,
        "num_blocks": hello.num_blocks,
        "max_length": hello.max_length,
        "ranks": hello.ranks,
        "stored_hashes": len(core.stored[ARENA]),
        "handoffs": [_as_dict(report) for report in core.handoffs],
    }
    if core.status is not None:
        load, totals = core.status.load, core.status.totals
        blocks = ("free", "cached", "used", "quarantined")
        state["blocks"] = {name: getattr(load, f"{name}_blocks") for name in blocks}
        state["max_running"] = load.slots
        numbers = ("queue_tokens", "waiting", "running", "prefill_rate", "step_time")
        state |= {name: getattr(load, name) for name in numbers}
        state["totals"] = msgspec.structs.asdict(totals)
        state["idle"] = core.status.idle
        state["shares_cores"] = core.status.shares_cores
    return state


def _as_dict(report: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(report)
