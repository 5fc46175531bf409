"""Handles workers' frames: updates the fleet and the KV index, and forwards events to the sub-requests concerned."""

import logging
from collections.abc import Callable

from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.driver import SubRequestDriver
from legato_gateway.routing import tiers
from legato_gateway.workers.links import Links
from legato_protocol.security.followed_tokens import RefusalLog
from legato_protocol.wire.kv_events import ARENA, TIERS, KVEvent
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Failed, FromWorker, HandoffReport, Hello, Lost, PromptLogprobs, Started, Tokens

_log = logging.getLogger(__name__)


class WorkerListener:
    """Implements `StreamListener`. `fleet_changed` is called after every change that may have freed room."""

    def __init__(
        self,
        context: RelayContext,
        driver: SubRequestDriver,
        links: Links,
        fleet_changed: Callable[[], None],
    ) -> None:
        self._fleet = context.fleet
        self._index = context.index
        self._admission = context.admission
        self._registry = context.registry
        self._driver = driver
        self._links = links
        self._history = context.history
        self._metrics = context.metrics
        self._refusals = RefusalLog()
        self._fleet_changed = fleet_changed

    def greeted(self, worker: str, hello: Hello) -> None:
        known = self._fleet.worker(worker)
        if known is None:
            return
        replaced = known.epoch not in ("", hello.epoch)
        continues = known.greeted and not replaced
        self._fleet.greeted(worker, hello)
        if replaced:
            self._driver.lost(worker, f"{worker} was replaced", died=True)
        if known.foreign:
            _log.warning("%s gets no requests: %s", worker, known.problem)
            self._metrics.count("foreign_workers", worker)
        if not continues:
            self._expect(worker, hello)
            self._links.request_snapshot(worker)
        self._fleet_changed()

    def received(self, worker: str, frame: FromWorker) -> None:
        if isinstance(frame, Tokens):
            for item in frame.items:
                self._driver.token(worker, item)
        elif isinstance(frame, PromptLogprobs):
            self._driver.scored(worker, frame)
        elif isinstance(frame, Started):
            self._driver.started(worker, frame)
        elif isinstance(frame, Load):
            self._loaded(worker, frame)
        elif isinstance(frame, Failed):
            self._driver.failed(worker, frame)
        elif isinstance(frame, HandoffReport):
            self._history.handed_over(worker, frame)
            self._metrics.handed_over(frame)
            self._driver.handed_over(frame)
        elif isinstance(frame, Lost):
            self._core_lost(worker, frame)

    def silent(self, worker: str) -> None:
        known = self._fleet.worker(worker)
        if known is None or not known.ready:
            return  # silent because its core is gone
        self._fleet.disconnected(worker, "silent", "it sends nothing")
        self._fleet_changed()

    def hung(self, worker: str) -> None:
        known = self._fleet.worker(worker)
        if known is None or known.connection != "silent":
            return
        self._fleet.disconnected(worker, "hung", "it sends nothing")
        self._driver.lost(worker, f"{worker} hangs", died=False)
        self._fleet_changed()

    def spoke(self, worker: str) -> None:
        self._fleet.spoke(worker)
        self._fleet_changed()

    def disconnected(self, worker: str, reason: str) -> None:
        known = self._fleet.worker(worker)
        if known is not None:
            drained = known.draining
            self._fleet.disconnected(worker, "connecting", reason)
            self._driver.lost(worker, f"the connection to {worker} broke: {reason}", died=not drained)
            self._fleet_changed()

    def removed(self, worker: str) -> None:
        """Discovery has dropped the worker, and its streams are closed."""
        self._fleet.remove(worker)
        self._forget(worker)

    def kv_event(self, worker: str, event: KVEvent) -> bool:
        return self._index.apply(tiers.holder(worker, event.tier), event)

    def kv_read_on(self, worker: str) -> bool:
        return any(self._index.read_on(holder) for holder in tiers.holders(worker))

    def kv_lost(self, worker: str) -> None:
        known = self._fleet.worker(worker)
        if known is not None and known.hello is not None:
            self._expect(worker, known.hello)

    def bad_frame(self, worker: str, reason: str) -> None:
        self._metrics.count("bad_frames", worker)

    def unknown_kind(self, worker: str, reason: str) -> None:
        self._metrics.count("unknown_frames", worker)

    def refused(self, worker: str, path: str) -> None:
        self._metrics.count("refused_tokens", "worker")
        if line := self._refusals.note(f"{worker} refuses the service's token as this gateway knows it, at {path}"):
            _log.warning(line)

    def _loaded(self, worker: str, load: Load) -> None:
        known = self._fleet.worker(worker)
        if known is None:
            return
        left_before = known.leaving
        self._fleet.loaded(worker, load)
        for sub in self._registry.at(worker):
            self._admission.progress(sub.generation.id, sub.generation.completion_tokens)
        self._admission.served_elsewhere(load.served_elsewhere, known.loaded_at)
        if known.leaving and not left_before:
            self._driver.drained(worker)
        self._fleet_changed()

    def _core_lost(self, worker: str, lost: Lost) -> None:
        """A silent core hung, like a silent worker: its requests are not to blame."""
        known = self._fleet.worker(worker)
        if known is not None and known.epoch == lost.epoch:
            self._fleet.disconnected(worker, "lost", lost.reason)
            self._forget(worker)
            self._driver.lost(worker, f"the core of {worker} died: {lost.reason}", died=not lost.silent)
            self._fleet_changed()

    def _expect(self, worker: str, hello: Hello) -> None:
        """Expects snapshots of the tiers of the worker's KV."""
        for tier in range(len(TIERS)):
            if tier == ARENA or tier in hello.tiers:
                self._index.expect(tiers.holder(worker, tier), hello.epoch, whole=not hello.windows)
            else:
                self._index.forget(tiers.holder(worker, tier))

    def _forget(self, worker: str) -> None:
        for holder in tiers.holders(worker):
            self._index.forget(holder)
