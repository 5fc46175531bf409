"""The data of probes, `/metrics` and `GET /state`: the fleet, the queue and the last requests, as plain JSON values."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from msgspec import structs

from legato_gateway.discovery.addresses import Discovery
from legato_gateway.http.demand_report import DemandReporter
from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.relay.relay import RequestRelay
from legato_gateway.request import RouteRecord
from legato_gateway.workers.fleet import Worker
from legato_protocol.wire.load import DecodeCoefficients, PrefillCoefficients

_OF_HELLO = (
    *("role", "epoch", "kv_revision", "pod_revision", "weights", "layout", "transport", "block_size", "windows"),
    "ranks",
)
_OF_LOAD = (
    *("free_blocks", "cached_blocks", "used_blocks", "quarantined_blocks", "queue_tokens", "waiting", "running"),
    *("slots", "preemptions", "prefill_rate", "step_time"),
)


class State:
    """The data of probes, `/metrics` and `/state`. Reads the gateway's parts, and changes nothing."""

    def __init__(
        self,
        context: RelayContext,
        relay: RequestRelay,
        discovery: Discovery,
        demand: DemandReporter,
        hold_without_workers: bool = False,
        model: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """The result of `model` is shown unchanged."""
        self._model = model
        self._hold_without_workers = hold_without_workers
        self._demand = demand
        self._metrics = context.metrics
        self._relay = relay
        self._fleet = context.fleet
        self._index = context.index
        self._admission = context.admission
        self._history = context.history
        self._discovery = discovery

    def state(self) -> dict[str, Any]:
        """Returns the data of `/state`, as of now."""
        progress = self._relay.progress()
        return {
            "model": dict(self._model()),
            "workers": [self._worker(worker) for worker in self._fleet],
            "discovery": {"problem": self._discovery.problem},
            "queue": {"requests": self._admission.queued, "tokens": self._admission.queued_tokens},
            "kv_index": {
                "blocks": self._index.blocks,
                "max_blocks": self._index.max_blocks,
                "evicted": self._index.evicted,
                "dropped": self._index.dropped,
            },
            "requests": [_request(record, progress.get(record)) for record in self._history.records],
        }

    def unready(self) -> str | None:
        """Returns the reason why requests should not come here, or None.

        A gateway that lost its last worker queues requests for the next, as every other gateway would: without a ready
        one the Service would refuse them. So does one that never had a worker where that is allowed, once it has tried
        all listed ones. If workers serve another model, other gateways are responsible.
        """
        decoders = [w for w in self._fleet if w.hello is not None and w.hello.role != "prefill"]
        replaced = any(worker.connection == "connected" and worker.foreign for worker in decoders)
        holds = self._fleet.has_served or (self._hold_without_workers and self._fleet.has_tried_all)
        if any(worker.ready for worker in decoders) or (holds and not replaced):
            return None
        problems = [f"{w.name}: {w.problem or w.connection}" for w in self._fleet] or ["none is listed"]
        problems += [self._discovery.problem] if self._discovery.problem else []
        return f"no decode worker is connected ({'; '.join(problems)})"

    def load(self) -> int:
        """Returns the number of requests in progress in this gateway, queued ones included."""
        return self._relay.active

    def metrics(self) -> tuple[bytes, str]:
        """Returns the data of `/metrics`, and its content type."""
        return self._metrics.render(self._demand.report())

    def _worker(self, worker: Worker) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "worker": worker.name,
            "address": worker.address,
            "connection": worker.connection,
            "problem": worker.problem,
            "draining": worker.draining,
        }
        if hello := worker.hello:
            shown |= {name: getattr(hello, name) for name in _OF_HELLO}
            shown |= {"total_blocks": hello.num_blocks, "indexed_blocks": self._index.blocks_at(worker.name)}
        if load := worker.load:
            shown |= {name: getattr(load, name) for name in _OF_LOAD}
            shown |= {"prefill_cost": _fields(load.prefill_cost), "decode_cost": _fields(load.decode_cost)}
        return shown


def _fields(costs: PrefillCoefficients | DecodeCoefficients | None) -> dict[str, Any] | None:
    """Returns coefficients by name: between processes they are arrays."""
    return structs.asdict(costs) if costs is not None else None


def _request(record: RouteRecord, progress: tuple[Stage, int] | None) -> dict[str, Any]:
    """Returns the data of a request. Without progress, it has ended."""
    shown = asdict(record) | {"stage": Stage.ENDED.value}
    if progress is not None:
        shown["stage"], shown["output_tokens"] = progress[0].value, progress[1]
    return shown
