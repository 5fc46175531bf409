"""Legs onto workers: asks the router, draws rooms, makes the frames. Remembers nothing."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.leg import Leg, Placement
from legato_gateway.routing import filters
from legato_gateway.routing.choose import NoRoute, Policy, Route, choose
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.workers.fleet import Fleet
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
    pack_tokens,
)

EVERYTHING = 1 << 60  # tokens: as `local_prefill_below_tokens`, it makes every route local
Send = Callable[[str, ToWorker], bool]


class Dispatcher:
    """Sends legs out. `send` queues a frame for a worker, and says False when it is not connected."""

    def __init__(self, fleet: Fleet, index: KVIndex, policy: Policy, send: Send, source: random.Random) -> None:
        self._fleet = fleet
        self._index = index
        self._policy = policy
        self._local = replace(policy, local_prefill_below_tokens=EVERYTHING)
        self._send = send
        self._random = source

    # ── what a leg needs ────────────────────────────────────────────────────────────────────────────────────────

    def need(self, leg: Leg) -> Need:
        """What it asks of a worker now."""
        output = self._output(leg)
        request = leg.generation.request
        return Need(
            leg.id,
            len(request.prompt) + len(output),
            max(request.params.max_tokens - len(output), 0),
            len(leg.open),
            leg.kv_revision if output else "",
            frozenset(leg.avoid),
        )

    async def hash_prompt(self, generation: RunningGeneration) -> None:
        """What `matches` asks for first, in short pieces: a long prompt holds up no other stream."""
        for revision, size in _hashings(self._fleet.snapshot()):
            for known in generation.hashes.pieces(revision, size):
                self._index.match(known)  # the index remembers what it has walked
                await asyncio.sleep(0)

    def matches(self, leg: Leg, snapshot: FleetSnapshot) -> dict[str, int]:
        """Leading blocks of its sequence that each worker holds."""
        found: dict[str, int] = {}
        tokens = leg.generation.prompt + pack_tokens(self._output(leg))
        for revision, size in _hashings(snapshot):
            held = self._index.match(leg.generation.hashes.of(tokens, revision, size))
            found.update(
                (w.name, held[w.name]) for w in snapshot.workers if w.kv_revision == revision and w.name in held
            )
        return found

    # ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────

    def dispatch(self, leg: Leg) -> Placement | NoRoute:
        """Places `leg` on workers under a new attempt, or says why not."""
        route = self._route(leg)
        if isinstance(route, NoRoute):
            return route
        leg.attempt += 1
        sent = self._send_local(leg, route) if route.prefill is None else self._send_pair(leg, route, route.prefill)
        names = [name for name in (route.prefill, route.decode) if name]
        if not sent:
            for name in names:
                self._send(name, Cancel(leg.id, leg.attempt))
            return NoRoute(f"{' or '.join(names)} has just gone", lasting=False)
        if leg.generation.paused:
            self._send(route.decode, Pause(leg.id, leg.attempt, True))
        self._record(leg, route)
        epochs = {name: self._hello(name).epoch for name in names}
        return Placement(leg.attempt, route.prefill or "", route.decode, epochs)

    def move(self, leg: Leg) -> Placement | None:
        """Hands the running `leg` on to another worker of equal KV revision, if one can take it now."""
        assert leg.placement is not None
        source = leg.placement.decode
        revision = self._hello(source).kv_revision
        need = replace(self.need(leg), kv_revision=revision, avoid=frozenset({source}))
        snapshot = self._fleet.snapshot()
        linked = FleetSnapshot(tuple(w for w in snapshot.workers if w.address and w.decodes))
        route = choose(need, linked, {}, self._local)
        if isinstance(route, NoRoute) or not self._hello(source).address:
            return None
        leg.attempt += 1
        room, target = self._room(), route.decode
        if not self._send(target, Decode(leg.id, leg.attempt, room, self._sequence(leg), self._peer(source))):
            return None
        self._send(source, Handoff(leg.id, leg.attempt, room, self._peer(target)))
        if leg.generation.paused:
            self._send(target, Pause(leg.id, leg.attempt, True))
        self._fleet.sent(target, queued=0, held=need.tokens)
        return Placement(leg.attempt, "", target, {target: self._hello(target).epoch})

    def cancel(self, leg: Leg) -> None:
        """Stops all work for it everywhere."""
        for worker in leg.workers:
            self._send(worker, Cancel(leg.id, leg.attempt))

    def cancel_choice(self, leg: Leg, choice: int) -> None:
        """Stops the work for one of its running choices."""
        assert leg.placement is not None
        self._send(leg.placement.decode, Cancel(leg.id, leg.attempt, (choice,)))

    def cancel_move(self, leg: Leg, move: Placement) -> None:
        """Stops the receiver of a move; the sender would take it for the end of the sequence itself."""
        self._send(move.decode, Cancel(leg.id, move.attempt))

    def split(self, id: str, placement: Placement, names: dict[int, str]) -> None:
        """The choices of the leg `id`, which run there, get ids of their own."""
        self._send(placement.decode, Split(id, placement.attempt, names))

    def pause(self, leg: Leg, on: bool) -> None:
        """Holds back its tokens, or lets them come again."""
        for placement in (leg.placement, leg.move):
            if placement is not None:
                self._send(placement.decode, Pause(leg.id, placement.attempt, on))

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _route(self, leg: Leg) -> Route | NoRoute:
        """A worker that failed it, or that fails often, is used where no other is left."""
        need, policy = self.need(leg), self._local if leg.recompute else self._policy
        snapshot = self._fleet.snapshot()
        matches = self.matches(leg, snapshot)
        route = choose(need, snapshot, matches, policy)
        if isinstance(route, NoRoute) and need.avoid:
            need = replace(need, avoid=frozenset())
            route = choose(need, snapshot, matches, policy)
        if isinstance(route, NoRoute) and any(worker.broken for worker in snapshot.workers):
            route = choose(need, filters.forgiven(snapshot, need), matches, policy)
        return route

    def _send_local(self, leg: Leg, route: Route) -> bool:
        sequence = self._sequence(leg)
        tokens = len(sequence.token_ids) // 4
        self._fleet.sent(route.decode, queued=tokens - route.cached.get(route.decode, 0), held=tokens)
        return self._send(route.decode, Generate(leg.id, leg.attempt, sequence))

    def _send_pair(self, leg: Leg, route: Route, prefill: str) -> bool:
        sequence, room = self._sequence(leg), self._room()
        tokens = len(sequence.token_ids) // 4
        self._fleet.sent(prefill, queued=tokens - route.cached.get(prefill, 0), held=tokens)
        self._fleet.sent(route.decode, queued=0, held=tokens)
        there = Prefill(leg.id, leg.attempt, room, sequence, self._peer(route.decode))
        here = Decode(leg.id, leg.attempt, room, sequence, self._peer(prefill))
        return self._send(prefill, there) and self._send(route.decode, here)

    def _sequence(self, leg: Leg) -> Sequence:
        generation = leg.generation
        request = generation.request
        return Sequence(
            token_ids=generation.prompt + pack_tokens(self._output(leg)),
            prompt_len=len(request.prompt),
            params=request.params,
            deadline=max(generation.expires - asyncio.get_running_loop().time(), 0.001),
            choices=leg.open,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
        )

    def _output(self, leg: Leg) -> list[int]:
        """Tokens that continue the prompt: a leg of several choices has none, or it would have been split."""
        return leg.generation.choices[leg.choices[0]].tokens if len(leg.choices) == 1 else []

    def _record(self, leg: Leg, route: Route) -> None:
        record = leg.generation.route
        record.attempt = max(record.attempt, leg.attempt)
        record.prefill, record.decode, record.why = route.prefill or "local", route.decode, route.why
        record.cached_tokens = dict(route.cached)
        record.transport = self._hello(route.decode).transport if route.prefill else ""

    def _room(self) -> int:
        return self._random.getrandbits(63)

    def _peer(self, worker: str) -> Peer:
        hello = self._hello(worker)
        return Peer(worker, hello.epoch, hello.address)

    def _hello(self, name: str) -> Hello:
        worker = self._fleet.worker(name)
        assert worker is not None, "only greeted workers are routed to"
        assert worker.hello is not None, "only greeted workers are routed to"
        return worker.hello


def _hashings(snapshot: FleetSnapshot) -> set[tuple[str, int]]:
    """Every way in which a worker of this fleet hashes blocks: KV revision and block size."""
    return {(worker.kv_revision, worker.block_size) for worker in snapshot.workers}
