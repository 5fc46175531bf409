"""Sends sub-requests to workers: asks the router, draws room numbers, builds frames. Keeps no state of requests."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import msgspec

from legato_gateway import policy
from legato_gateway.relay.attempt_place import AttemptPlace
from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.sub_request import SubRequest
from legato_gateway.routing import filters
from legato_gateway.routing.canary_share import choose_revision
from legato_gateway.routing.choose import NoRoute, Policy, Route
from legato_gateway.routing.filters import LONGEST, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.predicted_prefixes import PREDICTED_SECONDS, SETTLING_SECONDS, PredictedPrefixes
from legato_gateway.routing.prefix_hashes import Hashing
from legato_gateway.routing.rebalancing import HotWorker
from legato_protocol.sampling.parameters import SamplingParams, later_params
from legato_protocol.wire import transports
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import (
    Cancel,
    Decode,
    Generate,
    Handoff,
    Hello,
    KVSource,
    Pause,
    Peer,
    Prefill,
    Sequence,
    Split,
    ToWorker,
)

Send = Callable[[str, ToWorker], bool]


class SubRequestDispatcher:
    """`send` queues a frame for a worker, or returns False if it is not connected.

    Reads the state of admission, and never changes it.
    """

    def __init__(
        self,
        context: RelayContext,
        policy: Policy,
        send: Send,
        source: random.Random,
        longest: Callable[[], int] = lambda: LONGEST,
    ) -> None:
        """`longest` returns the tokens of the longest sequence at the moment."""
        self._longest = longest
        self._clock = context.timers.time
        self._admission = context.admission
        self._fleet = context.fleet
        self._index = context.index
        self._policy = policy
        self._send = send
        self._random = source
        self._predicted = PredictedPrefixes()
        self._roomy_in: FleetSnapshot | None = None  # the snapshot that `_roomy` was computed from
        self._roomy: dict[str, int] = {}

    # ── what a sub-request needs ────────────────────────────────────────────────────────────────────────────────

    def need(self, sub: SubRequest) -> Need:
        """Returns the needs of `sub` from a worker, as of now."""
        output = sub.output
        request = sub.generation.request
        known = len(request.prompt) + len(output)
        room = max(1, self._longest() - known)  # less than requested, if no worker was known when it arrived
        return Need(
            sub.id,
            known,
            min(max(request.params.max_tokens - len(output), 0), room),
            len(sub.open),
            sub.kv_revision if output else "",
            frozenset(sub.avoid),
            request.params.grammar_kind if request.params.grammar else "",
            later_params(_params(sub.generation)),
            request.adapter,
            sub.adapter_digest if output else "",
            0.0 if output else self._clock() - sub.generation.timing.arrived,
            self._admission.queued_cost,
            0 if output else self._admission.alternating_tenants(request.tenant),
            sub.recompute,
        )

    def digest(self, sub: SubRequest, hello: Hello) -> str:
        """Returns the digest of its adapter on that worker, which its output keeps; empty: no adapter."""
        name = sub.generation.request.adapter
        return (sub.adapter_digest if sub.output else hello.adapters[name]) if name else ""

    async def hash_prompt(self, generation: RunningGeneration) -> None:
        """Hashes the prompt for `matches` in short pieces, so that a long prompt delays no other stream."""
        for hashing in _hashings(self._fleet.snapshot(), generation.request.adapter):
            for known in generation.hashes.pieces(hashing):
                self._index.match(known)  # the index remembers what it has walked
                await asyncio.sleep(0)

    def matches(self, sub: SubRequest, snapshot: FleetSnapshot) -> dict[str, int]:
        """Returns the number of leading blocks of its sequence that each worker has cached."""
        cached: dict[str, int] = {}
        if sub.generation.lacks_scores:
            return cached
        tokens = sub.generation.prompt + pack_tokens(sub.output)
        for hashing in _sub_request_hashings(sub, snapshot):
            cached |= self._index.match(sub.generation.hashes.chain(tokens, hashing))
        return cached

    def may_fit(self, sub: SubRequest) -> bool:
        """Returns False if no worker can have room for it now: a cheap test before the full search of `dispatch`."""
        need, snapshot = self.need(sub), self._fleet.snapshot()
        if self._most_room(snapshot, need.kv_revision) >= need.tokens:
            return True
        matches = self.matches(sub, snapshot)
        return any(
            filters.full(worker, need, filters.matched(worker, need, matches)) is None
            for worker in snapshot.workers
            if worker.name in matches and worker.decodes
        )

    def may_migrate(self, sub: SubRequest) -> bool:
        """Returns False if no worker can have room for its migration now."""
        assert sub.place is not None
        revision = self._hello(sub.place.decode).kv_revision
        return self._most_room(self._fleet.snapshot(), revision) >= len(sub.generation.request.prompt) + len(sub.output)

    # ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────

    def dispatch(self, sub: SubRequest) -> AttemptPlace | NoRoute:
        """Places `sub` on workers under a new attempt, or returns the reason why it cannot."""
        snapshot = self._fleet.snapshot()
        matches, predicted = self.matches(sub, snapshot), self._predictions(sub, snapshot)
        revision = choose_revision(self._fleet.canary, snapshot, sub.generation.id)
        need = replace(self.need(sub), new_revision=revision.new)
        route = policy.place(need, snapshot, matches, self._policy, predicted)
        if isinstance(route, NoRoute):
            return route
        sub.attempt += 1
        sent = self._send_local(sub, route) if route.prefill is None else self._send_pair(sub, route, route.prefill)
        names = [name for name in (route.prefill, route.decode) if name]
        if not sent:
            for name in names:
                self._send(name, Cancel(sub.id, sub.attempt))
            return NoRoute(f"{' or '.join(names)} has just gone", lasting=False, stale=True)
        if sub.generation.paused:
            self._send(route.decode, Pause(sub.id, sub.attempt, True))
        self._predict(sub, route)
        self._record(sub, route)
        epochs = {name: self._hello(name).epoch for name in names}
        compared = self._revision(names) if revision.compared else None
        return AttemptPlace(
            sub.attempt, route.prefill or "", route.decode, epochs, route.prefill_at, route.to_compute, compared
        )

    def migrate(self, sub: SubRequest, hot: HotWorker | None = None) -> AttemptPlace | None:
        """Hands the running `sub` to another worker of equal KV revision, if one can take it now.

        A worker that is merely `hot` only hands it to one that relieves it.
        """
        assert sub.place is not None
        source = sub.place.decode
        hello = self._hello(source)
        if not hello.address:
            return None
        snapshot = self._fleet.snapshot()
        revision = choose_revision(self._fleet.canary, snapshot, sub.generation.id).new
        need = replace(self.need(sub), kv_revision=hello.kv_revision, digest=sub.adapter_digest, new_revision=revision)
        network = transports.network(hello.transport)
        workers = snapshot.workers
        linked = [w for w in workers if w.address and transports.network(w.transport) == network]
        target = policy.migration_target(need, source, linked, self._policy, hot)
        if target is None:
            return None
        sub.attempt += 1
        room = self._room()
        sequence = self._sequence(sub, sub.adapter_digest)
        if not self._send(target, Decode(sub.id, sub.attempt, room, sequence, self._peer(source))):
            return None
        self._send(source, Handoff(sub.id, sub.attempt, room, self._peer(target)))
        if sub.generation.paused:
            self._send(target, Pause(sub.id, sub.attempt, True))
        self._fleet.sent(target, queued=0, held=need.tokens)
        reason = "draining" if hot is None else hot.reason
        return AttemptPlace(sub.attempt, "", target, {target: self._hello(target).epoch}, migrates=reason)

    def cancel(self, sub: SubRequest) -> None:
        """Stops all work for it on every worker."""
        self._predicted.remove(sub.id)
        for worker in sub.workers:
            self._send(worker, Cancel(sub.id, sub.attempt))

    def computed(self, sub: SubRequest) -> None:
        """Shortens its prediction: its prompt has been computed."""
        self._predicted.shorten(sub.id, self._clock() + SETTLING_SECONDS)

    def cancel_at(self, worker: str, sub: SubRequest) -> None:
        """Stops work for it on a worker that it has left."""
        self._send(worker, Cancel(sub.id, sub.attempt))

    def cancel_choice(self, sub: SubRequest, choice: int) -> None:
        """Stops work for one of its running choices."""
        assert sub.place is not None
        self._send(sub.place.decode, Cancel(sub.id, sub.attempt, (choice,)))

    def cancel_target(self, sub: SubRequest) -> None:
        """Stops the target of its migration. Its source must not get the message: it would end the sequence."""
        assert sub.target is not None
        self._send(sub.target.decode, Cancel(sub.id, sub.target.attempt))

    def split(self, id: str, place: AttemptPlace, names: dict[int, str]) -> None:
        """Gives each choice of `id`, running at `place`, an id of its own."""
        self._send(place.decode, Split(id, place.attempt, names))

    def pause(self, sub: SubRequest, on: bool) -> None:
        """Pauses or resumes its tokens."""
        for place in (sub.place, sub.target):
            if place is not None:
                self._send(place.decode, Pause(sub.id, place.attempt, on))

    def check_integrity(self) -> None:
        """Raises AssertionError unless the predictions are consistent."""
        self._predicted.check_integrity()

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _most_room(self, snapshot: FleetSnapshot, revision: str) -> int:
        """Returns the most room in tokens on workers of this revision; empty: of any revision."""
        if self._roomy_in is not snapshot:
            self._roomy_in, self._roomy = snapshot, filters.most_room(snapshot)
        if revision:
            return self._roomy.get(revision, -1)
        return max(self._roomy.values(), default=-1)

    def _predictions(self, sub: SubRequest, snapshot: FleetSnapshot) -> dict[str, int]:
        """Returns the number of leading prompt blocks that each worker will soon have cached."""
        soon: dict[tuple[str, str], int] = {}
        if len(self._predicted) and not sub.generation.lacks_scores:
            for hashing in _sub_request_hashings(sub, snapshot):
                prompt = sub.generation.hashes.chain(sub.generation.prompt, hashing)
                soon |= self._predicted.match(prompt, self._clock())
        return {w.name: soon[w.name, w.epoch] for w in snapshot.workers if (w.name, w.epoch) in soon}

    def _predict(self, sub: SubRequest, route: Route) -> None:
        """Predicts that the worker that computes the prompt will have it cached."""
        worker = route.prefill or route.decode
        hello = self._hello(worker)
        if route.to_compute >= hello.block_size:
            hashing = Hashing(hello.kv_revision, hello.block_size, self.digest(sub, hello))
            prompt = sub.generation.hashes.chain(sub.generation.prompt, hashing)
            self._predicted.add(sub.id, worker, hello.epoch, prompt, self._clock() + PREDICTED_SECONDS)

    def _send_local(self, sub: SubRequest, route: Route) -> bool:
        sequence = self._sequence(sub, self.digest(sub, self._hello(route.decode)))
        tokens = len(sequence.token_ids) // 4
        self._fleet.sent(route.decode, queued=route.to_compute, held=tokens)
        return self._send(route.decode, Generate(sub.id, sub.attempt, sequence, self._fetch(route)))

    def _send_pair(self, sub: SubRequest, route: Route, prefill: str) -> bool:
        sequence, room = self._sequence(sub, self.digest(sub, self._hello(route.decode))), self._room()
        tokens = len(sequence.token_ids) // 4
        self._fleet.sent(prefill, queued=route.to_compute, held=tokens)
        self._fleet.sent(route.decode, queued=0, held=tokens)
        there = Prefill(sub.id, sub.attempt, room, sequence, self._peer(route.decode), self._fetch(route))
        here = Decode(sub.id, sub.attempt, room, sequence, self._peer(prefill))
        return self._send(prefill, there) and self._send(route.decode, here)

    def _fetch(self, route: Route) -> KVSource | None:
        fetch = route.fetch
        return KVSource(self._peer(fetch.source), self._room(), fetch.blocks, fetch.budget) if fetch else None

    def _sequence(self, sub: SubRequest, adapter: str) -> Sequence:
        """Returns the sequence in its wire form, with the digest of its adapter."""
        generation = sub.generation
        request = generation.request
        return Sequence(
            token_ids=generation.prompt + pack_tokens(sub.output),
            prompt_len=len(request.prompt),
            params=_params(generation),
            deadline=max(generation.ends - self._clock(), 0.001),
            choices=sub.open,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            adapter=adapter,
            trace=generation.trace.dispatched(sub) if generation.trace is not None else "",
        )

    def _record(self, sub: SubRequest, route: Route) -> None:
        record = sub.generation.route
        record.attempt = max(record.attempt, sub.attempt)
        record.prefill, record.decode, record.why = route.prefill or "local", route.decode, route.why
        record.add_workers(route.prefill or "", route.decode)
        record.cached_tokens = dict(route.cached)
        record.transport = self._hello(route.decode).transport if route.prefill else ""

    def _revision(self, names: list[str]) -> bool | None:
        """Returns the revision of these workers, True for a canary's new one; None if they differ or have both."""
        views = {worker.name: worker.new_revision for worker in self._fleet.snapshot().workers}
        revisions = {views[name] for name in names if name in views} - {None}
        return revisions.pop() if len(revisions) == 1 else None

    def _room(self) -> int:
        return self._random.getrandbits(63)

    def _peer(self, worker: str) -> Peer:
        hello = self._hello(worker)
        return Peer(worker, hello.epoch, hello.address, hello.handoff_tls)

    def _hello(self, name: str) -> Hello:
        worker = self._fleet.worker(name)
        assert worker is not None, "only greeted workers are routed to"
        assert worker.hello is not None, "only greeted workers are routed to"
        return worker.hello


def _params(generation: RunningGeneration) -> SamplingParams:
    """Returns the parameters for a worker, without logprobs that are known already."""
    params = generation.request.params
    if params.prompt_logprobs is None or generation.lacks_scores:
        return params
    return msgspec.structs.replace(params, prompt_logprobs=None)


def _hashings(snapshot: FleetSnapshot, adapter: str, digest: str = "") -> set[Hashing]:
    """Returns every way in which workers of this fleet hash blocks with this adapter, or without one."""
    able = [worker for worker in snapshot.workers if not adapter or filters.has_adapter(worker, adapter, digest)]
    return {
        Hashing(worker.kv_revision, worker.block_size, digest or worker.adapters.get(adapter, "")) for worker in able
    }


def _sub_request_hashings(sub: SubRequest, snapshot: FleetSnapshot) -> set[Hashing]:
    """Returns the hashings for `sub`. Once it has output, its adapter cannot change."""
    return _hashings(snapshot, sub.generation.request.adapter, sub.adapter_digest if sub.output else "")
