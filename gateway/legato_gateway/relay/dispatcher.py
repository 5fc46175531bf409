"""Sub-requests onto workers: asks the router, draws rooms, makes the frames. Remembers nothing."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import msgspec

from legato_gateway.admission.queue import Admission
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.sub_request import AttemptPlace, SubRequest
from legato_gateway.routing import filters
from legato_gateway.routing.choose import NoRoute, Policy, Route, choose
from legato_gateway.routing.filters import LONGEST, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.routing.predicted_prefixes import PREDICTED_SECONDS, SETTLING_SECONDS, PredictedPrefixes
from legato_gateway.routing.prefix_hashes import Hashing
from legato_gateway.routing.rebalancing import HotWorker
from legato_gateway.workers.fleet import Fleet
from legato_protocol import transports
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.sampling_params import SamplingParams, later_params
from legato_protocol.stream import (
    Cancel,
    Decode,
    Generate,
    Handoff,
    Hello,
    Pause,
    Peer,
    Prefill,
    Sequence,
    Split,
    ToWorker,
)

Send = Callable[[str, ToWorker], bool]


class Dispatcher:
    """`send` queues a frame for a worker, and is False when that is not connected. `clock` is that of deadlines.
    What `admission` holds is asked for, and nothing is told to it."""

    def __init__(
        self,
        fleet: Fleet,
        index: KVIndex,
        policy: Policy,
        send: Send,
        source: random.Random,
        clock: Callable[[], float],
        admission: Admission,
        longest: Callable[[], int] = lambda: LONGEST,
    ) -> None:
        """`longest` returns the current tokens of the longest sequence."""
        self._longest = longest
        self._clock = clock
        self._admission = admission
        self._fleet = fleet
        self._index = index
        self._policy = policy
        self._send = send
        self._random = source
        self._predicted = PredictedPrefixes()
        self._roomy_in: FleetSnapshot | None = None  # the snapshot of which `_roomy` tells
        self._roomy: dict[str, int] = {}

    # ── what a sub-request needs ────────────────────────────────────────────────────────────────────────────────

    def need(self, sub: SubRequest) -> Need:
        """What it asks of a worker now."""
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
            self._admission.held_tokens,
            0 if output else self._admission.turns(request.tenant),
            sub.recompute,
        )

    def digest(self, sub: SubRequest, hello: Hello) -> str:
        """Of the adapter that it is computed with there, which output keeps; empty: the model alone."""
        name = sub.generation.request.adapter
        return (sub.adapter_digest if sub.output else hello.adapters[name]) if name else ""

    async def hash_prompt(self, generation: RunningGeneration) -> None:
        """What `matches` asks for first, in short pieces: a long prompt holds up no other stream."""
        for hashing in _hashings(self._fleet.snapshot(), generation.request.adapter):
            for known in generation.hashes.pieces(hashing):
                self._index.match(known)  # the index remembers what it has walked
                await asyncio.sleep(0)

    def matches(self, sub: SubRequest, snapshot: FleetSnapshot) -> dict[str, int]:
        """Leading blocks of its sequence that each worker holds, and need not compute."""
        found: dict[str, int] = {}
        if sub.generation.lacks_scores:
            return found
        tokens = sub.generation.prompt + pack_tokens(sub.output)
        for hashing in _hashings_of(sub, snapshot):
            found |= self._index.match(sub.generation.hashes.of(tokens, hashing))
        return found

    def may_fit(self, sub: SubRequest) -> bool:
        """False where no worker can have room for it now: asked before the long way of `dispatch`."""
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
        """The same for `migrate`."""
        assert sub.place is not None
        revision = self._hello(sub.place.decode).kv_revision
        return self._most_room(self._fleet.snapshot(), revision) >= len(sub.generation.request.prompt) + len(sub.output)

    # ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────

    def dispatch(self, sub: SubRequest) -> AttemptPlace | NoRoute:
        """Places `sub` on workers under a new attempt, or says why not."""
        route = self._route(sub)
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
        return AttemptPlace(sub.attempt, route.prefill or "", route.decode, epochs, route.prefill_at)

    def migrate(self, sub: SubRequest, hot: HotWorker | None = None) -> AttemptPlace | None:
        """Hands the running `sub` to another worker of equal KV revision, if one can take it now. From a worker that is
        merely `hot`, to one that relieves it."""
        assert sub.place is not None
        source = sub.place.decode
        hello = self._hello(source)
        if not hello.address:
            return None
        need = replace(self.need(sub), kv_revision=hello.kv_revision, avoid=frozenset({source}))
        need = replace(need, digest=sub.adapter_digest, local=True)
        snapshot = self._fleet.snapshot()
        network = transports.network(hello.transport)
        linked = [w for w in snapshot.workers if w.address and w.decodes and transports.network(w.transport) == network]
        if hot is not None:
            linked = [worker for worker in linked if hot.relieved_by(worker, need.tokens)]
            if not linked:
                return None
        route = choose(need, FleetSnapshot(tuple(linked)), {}, self._policy)
        if isinstance(route, NoRoute):
            return None
        sub.attempt += 1
        room, target = self._room(), route.decode
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
        """Stops all work for it everywhere."""
        self._predicted.remove(sub.id)
        for worker in sub.workers:
            self._send(worker, Cancel(sub.id, sub.attempt))

    def computed(self, sub: SubRequest) -> None:
        """Its prompt is computed."""
        self._predicted.shorten(sub.id, self._clock() + SETTLING_SECONDS)

    def cancel_at(self, worker: str, sub: SubRequest) -> None:
        """Stops what a worker that it left may still have of it."""
        self._send(worker, Cancel(sub.id, sub.attempt))

    def cancel_choice(self, sub: SubRequest, choice: int) -> None:
        """Stops the work for one of its running choices."""
        assert sub.place is not None
        self._send(sub.place.decode, Cancel(sub.id, sub.attempt, (choice,)))

    def cancel_target(self, sub: SubRequest) -> None:
        """Stops the target of its migration; the worker it runs at would take that for the end of the sequence."""
        assert sub.target is not None
        self._send(sub.target.decode, Cancel(sub.id, sub.target.attempt))

    def split(self, id: str, place: AttemptPlace, names: dict[int, str]) -> None:
        """The choices of `id`, which run there, get ids of their own."""
        self._send(place.decode, Split(id, place.attempt, names))

    def pause(self, sub: SubRequest, on: bool) -> None:
        """Holds back its tokens, or lets them come again."""
        for place in (sub.place, sub.target):
            if place is not None:
                self._send(place.decode, Pause(sub.id, place.attempt, on))

    def check_integrity(self) -> None:
        """Raises AssertionError unless what is predicted agrees with itself."""
        self._predicted.check_integrity()

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _most_room(self, snapshot: FleetSnapshot, revision: str) -> int:
        """Tokens; of any revision, where that is empty."""
        if self._roomy_in is not snapshot:
            self._roomy_in, self._roomy = snapshot, filters.most_room(snapshot)
        if revision:
            return self._roomy.get(revision, -1)
        return max(self._roomy.values(), default=-1)

    def _route(self, sub: SubRequest) -> Route | NoRoute:
        """A worker that failed it, or that fails often, is used where no other is left."""
        need, policy, snapshot = self.need(sub), self._policy, self._fleet.snapshot()
        matches, predicted = self.matches(sub, snapshot), self._predictions(sub, snapshot)
        route = choose(need, snapshot, matches, policy, predicted)
        if isinstance(route, NoRoute) and need.avoid:
            need = replace(need, avoid=frozenset())
            route = choose(need, snapshot, matches, policy, predicted)
        if isinstance(route, NoRoute) and any(worker.broken for worker in snapshot.workers):
            route = choose(need, filters.forgiven(snapshot, need), matches, policy, predicted)
        return route

    def _predictions(self, sub: SubRequest, snapshot: FleetSnapshot) -> dict[str, int]:
        """Leading blocks of its prompt that each worker will hold soon."""
        found: dict[tuple[str, str], int] = {}
        if len(self._predicted) and not sub.generation.lacks_scores:
            for hashing in _hashings_of(sub, snapshot):
                prompt = sub.generation.hashes.of(sub.generation.prompt, hashing)
                found |= self._predicted.match(prompt, self._clock())
        return {w.name: found[w.name, w.epoch] for w in snapshot.workers if (w.name, w.epoch) in found}

    def _predict(self, sub: SubRequest, route: Route) -> None:
        """Whoever computes its prompt will hold it."""
        worker = route.prefill or route.decode
        hello = self._hello(worker)
        if route.to_compute >= hello.block_size:
            hashing = Hashing(hello.kv_revision, hello.block_size, self.digest(sub, hello))
            prompt = sub.generation.hashes.of(sub.generation.prompt, hashing)
            self._predicted.add(sub.id, worker, hello.epoch, prompt, self._clock() + PREDICTED_SECONDS)

    def _send_local(self, sub: SubRequest, route: Route) -> bool:
        sequence = self._sequence(sub, self.digest(sub, self._hello(route.decode)))
        tokens = len(sequence.token_ids) // 4
        self._fleet.sent(route.decode, queued=route.to_compute, held=tokens)
        return self._send(route.decode, Generate(sub.id, sub.attempt, sequence))

    def _send_pair(self, sub: SubRequest, route: Route, prefill: str) -> bool:
        sequence, room = self._sequence(sub, self.digest(sub, self._hello(route.decode))), self._room()
        tokens = len(sequence.token_ids) // 4
        self._fleet.sent(prefill, queued=route.to_compute, held=tokens)
        self._fleet.sent(route.decode, queued=0, held=tokens)
        there = Prefill(sub.id, sub.attempt, room, sequence, self._peer(route.decode))
        here = Decode(sub.id, sub.attempt, room, sequence, self._peer(prefill))
        return self._send(prefill, there) and self._send(route.decode, here)

    def _sequence(self, sub: SubRequest, adapter: str) -> Sequence:
        """As workers are told it, with the digest of its adapter."""
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
        record.given(route.prefill or "", route.decode)
        record.cached_tokens = dict(route.cached)
        record.transport = self._hello(route.decode).transport if route.prefill else ""

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
    """What a worker is asked for now: nothing that is known already."""
    params = generation.request.params
    if params.prompt_logprobs is None or generation.lacks_scores:
        return params
    return msgspec.structs.replace(params, prompt_logprobs=None)


def _hashings(snapshot: FleetSnapshot, adapter: str, digest: str = "") -> set[Hashing]:
    """Every way in which a worker of this fleet hashes blocks of sequences with this adapter, or with none."""
    able = [worker for worker in snapshot.workers if not adapter or filters.has_adapter(worker, adapter, digest)]
    return {
        Hashing(worker.kv_revision, worker.block_size, digest or worker.adapters.get(adapter, "")) for worker in able
    }


def _hashings_of(sub: SubRequest, snapshot: FleetSnapshot) -> set[Hashing]:
    """The same for this one, which keeps the adapter that its output is of."""
    return _hashings(snapshot, sub.generation.request.adapter, sub.adapter_digest if sub.output else "")
