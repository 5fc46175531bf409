"""Random operations on two workers that hand sequences to each other: never a wrong token, never a lost block, no hang.

A step's device work happens at its begin or only at its end, so that everything in between may overtake it; peers write
late into blocks that they were granted once, until those are released.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduled_worker import Client, Worker

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.handoff.transfers import IncomingState, IncomingTransfer, OutgoingTransfer
from legato_engine.scheduler.requests.limits import RequestRejected
from legato_engine.scheduler.requests.request import Request, RequestState

PREFIXES = (tuple(range(12)), tuple(range(100, 107)), (1, 2))
GARBAGE = [0, 0, 0, 0]
HOLDING = (IncomingState.ALLOCATED, IncomingState.GRANTED, IncomingState.REVOKING, IncomingState.WRITING)


@dataclass(eq=False)
class Session:
    """One hand-off or migration, driven by hand as the transfer agents of both sides would."""

    client: Client
    source: Worker
    target: Worker
    request: Request
    incoming: IncomingTransfer
    migrating: bool
    outgoing: OutgoingTransfer | None = None  # a migration has none before its sender knows of the grant
    put: int = 0
    skipped: dict[int, int] = field(default_factory=dict)  # blocks before this one were not put, by window
    granted: bool = False  # the sender knows of the grant
    over: bool = False


class World:
    def __init__(self, num_blocks, ahead, windows=(), drafts=0, host_slots=0, files=0, draft_model=False):
        self.windows = windows
        self.ahead = ahead  # steps are launched before those before them ended
        limits = {
            "num_blocks": num_blocks,
            "host_slots": host_slots,
            "files": files,
            "max_length": 40,
            "windows": windows,
            "drafts": drafts,
            "draft_model": draft_model,
            "chunk_tokens": 8,
            "max_running": 6,
            "max_parked": 2,
            "growth_tokens": num_blocks % 3,
            "reserve_maximum": num_blocks % 4 == 0,
            "tpot": 1.5 if num_blocks % 2 else float("inf"),
        }
        self.workers = [Worker(**limits), Worker(**limits)]
        self.clients = []
        self.sessions = []
        self.quarantined = []  # (worker, incoming, its blocks)
        self.revoking = []  # sessions whose sender was asked to give the grant back

    # Operations: each takes two numbers and does what it can

    def generate(self, a, b):
        worker, client = self.workers[a % 2], self._client(a // 2, b)
        try:
            worker.add(client, priority=b % 3, deadline=worker.now + (6 if b % 13 == 3 else 1e6))
        except RequestRejected:
            client.over = True

    def dispatch(self, a, b):
        source, target = self._ways(a)
        client = self._client(a // 2, b)
        try:
            request = source.add(client, room=1, tenant=f"{b % 3}")
            incoming = target.reserve(client)
        except RequestRejected:
            source.cancel(client)
            return
        self.sessions.append(Session(client, source, target, request, incoming, False, request.outgoing))

    def migrate(self, a, b):
        source, target = self._ways(a)
        running = [(c, r) for c in self._live(self.clients) for r in self._migratable(source, c)]
        if not running:
            return
        client, request = running[b % len(running)]
        lag = b % 2 if request.outputs else 0
        known = request.tokens[: len(request.tokens) - lag]
        with suppress(RequestRejected):
            incoming = target.reserve(client, tokens=known, attempt=request.attempt + 1, choices=request.choices)
            self.sessions.append(Session(client, source, target, request, incoming, True))

    def grants(self, a, b):
        self.workers[a % 2].incoming.grants()

    def begin(self, a, b):
        worker = self.workers[a % 2]
        if worker.flight is None:
            worker.begin(compute=b % 2 == 0)
        elif worker.next is None and self.ahead:
            worker.begin_ahead(compute=b % 3 == 0)

    def end(self, a, b):
        worker = self.workers[a % 2]
        if worker.flight is None:
            return
        for request, _ in worker.end(fault=b == 7).faulted:
            client = worker.clients[request.id]
            client.over = True
            for other in self.workers:
                other.cancel(client)
        self._settle()

    def disk(self, a, b):
        self.workers[a % 2].serve_disk(1 + b % 5, "it is full" if b % 11 == 5 else "")

    def transfer(self, a, b):
        for session in self._one(self.sessions, a):
            self._advance(session)

    def abort(self, a, b):
        for session in self._one(self.sessions, a):
            self._abort(session)

    def give_back(self, a, b):
        """A sender answers that it gives its grant back, unless it has put something already."""
        if not self.revoking:
            return
        session = self.revoking.pop(a % len(self.revoking))
        if session.over or session.put:
            return
        if session.granted:
            session.source.outgoing.withdraw(session.outgoing)
        session.granted, session.put = False, 0
        session.target.incoming.on_revoked(session.incoming)

    def cancel(self, a, b):
        for client in self._one(self.clients, a):
            for worker in self.workers:
                worker.cancel(client)
            self._settle()

    def pause(self, a, b):
        for client in self._one(self.clients, a):
            for worker in self.workers:
                worker.scheduler.pause(client.id, 1, b % 2 == 0)

    def drop(self, a, b):
        for client in self._one([client for client in self.clients if len(client.choices) > 1], b):
            ended = self.workers[a % 2].drop(client, client.choices[b % len(client.choices)])
            for session in self.sessions:
                if session.incoming in ended.incoming:
                    self._quarantine(session.target, session.incoming)
                    self._give_up(session)

    def late_write(self, a, b):
        for worker, _, blocks in self.quarantined:
            worker.write(dict.fromkeys(blocks, GARBAGE))

    def release(self, a, b):
        if self.quarantined:
            worker, incoming, _ = self.quarantined.pop(a % len(self.quarantined))
            worker.incoming.on_released(incoming)

    def expire(self, a, b):
        worker = self.workers[a % 2]
        ended = worker.scheduler.expire(worker.now)
        for ending in (*ended.requests, *(incoming.request for incoming in ended.incoming)):
            worker.clients[ending.id].over = True
            for other in self.workers:
                other.scheduler.cancel(ending.id, 99)
        self._settle()

    # After all operations

    def finish(self):
        """Nothing is stopped any longer: everything comes to its end, and nothing stays behind."""
        for client in self.clients:
            for worker in self.workers:
                for attempt in range(1, 6):
                    worker.scheduler.pause(client.id, attempt, False)
        for _ in range(600):
            if all(worker.idle for worker in self.workers):
                break
            for worker in self.workers:
                if worker.flight is not None or worker.begin() is not None:
                    if self.ahead and worker.next is None:
                        worker.begin_ahead()
                    worker.end()
                worker.serve_disk()
            for session in self._live(self.sessions):
                self._advance(session)
            while self.quarantined:
                self.release(0, 0)
            while self.revoking:
                self.give_back(0, 0)
            self.check()
        for worker in self.workers:
            assert (worker.idle, worker.counts.used, worker.counts.quarantined) == (True, 0, 0)
        assert all(client.over or client.complete for client in self.clients)

    def check(self):
        for worker in self.workers:
            wanted = worker.incoming.revocations()
            self.revoking += [session for session in self.sessions if session.incoming in wanted]
            worker.check()

    # Parts

    @staticmethod
    def _live(those):
        return [one for one in those if not one.over]

    def _one(self, those, number):
        """One of these that is not over, if there is any."""
        live = self._live(those)
        return live and [live[number % len(live)]]

    def _client(self, a, b):
        prefix = PREFIXES[a % 3]
        client = Client(
            prefix[: len(prefix) - b % 3] + tuple(range(500, 500 + b % 7)) or (1,),
            max_tokens=1 + b % 19,
            choices=tuple(range(1 + (b % 5 == 0) + (b % 10 == 0))),
            seed=b,
            reads=b % 3 == 0,
            stop=tuple(range(0, 1000, 10)) if b % 4 == 0 else (),
            windows=self.windows,
        )
        self.clients.append(client)
        return client

    def _ways(self, a):
        return self.workers[a % 2], self.workers[1 - a % 2]

    def _migratable(self, worker, client):
        """Its sequences here that stand for one choice, run and do not migrate yet."""
        here = worker.scheduler.requests(client.id)
        alone = [r for r in here if len(r.choices) == 1 and r.state is RequestState.RUNNING and r.room is None]
        return [r for r in alone if not any(session.request is r for session in self._live(self.sessions))]

    def _advance(self, session):
        session.target.incoming.grants()
        if session.incoming.state not in HOLDING:
            if session.incoming.over:
                self._abort(session)
        elif session.incoming.state is IncomingState.ALLOCATED:
            pass  # its blocks are still moved to or from the host
        elif not session.granted:
            self._grant(session)
        elif session.migrating:
            try:
                kv = session.source.outgoing.finish(session.outgoing)
            except ValueError:  # its windows are beyond the grant
                self._abort(session)
                return
            if session.request.state is RequestState.ENDED:
                self._abort(session)
            elif kv is not None:
                self._commit(session, kv)
        elif session.request.state is RequestState.ENDED:
            self._abort(session)
        elif session.put < session.request.full_blocks(4):
            self._put(session, session.put, session.request)
            session.put += 1
        elif session.request.state is RequestState.COMPUTED:
            self._commit(session, session.source.outgoing.finish(session.outgoing))

    def _grant(self, session):
        outgoing = session.source.outgoing
        try:
            attempt = session.incoming.request.attempt
            session.outgoing = session.outgoing or outgoing.migrate(session.request, 1, attempt)
            firsts = tuple(table.first for table in session.incoming.windows)
            outgoing.grant(session.outgoing, len(session.incoming.blocks), firsts)
            session.granted = True
        except ValueError:
            self._abort(session)

    def _put(self, session, index, source):
        incoming, arena = session.incoming, session.source.arena
        session.target.incoming.on_written(incoming)
        if index < incoming.cached:
            return
        session.target.write({incoming.blocks[index]: arena.blocks[source.blocks[index]]})
        for group, (target, table) in enumerate(zip(incoming.windows, source.windows, strict=True)):
            if index >= max(target.first, table.first):
                session.target.write({target[index]: arena.blocks[table[index]]})
            else:
                session.skipped[group] = index + 1

    def _commit(self, session, kv):
        for index in range(session.put, len(kv.blocks)):
            self._put(session, index, session.request)
        session.over = True
        known = len(session.incoming.request.tokens)
        if session.migrating:
            sampled = {session.request.choice: [Sampled(token) for token in kv.token_ids[known:]]}
        else:
            sampled = {choice: (first,) for choice, first in session.request.first.items()}
        firsts = [max(t.first, session.skipped.get(g, 0)) for g, t in enumerate(session.incoming.windows)]
        session.target.adopt(session.incoming, kv.computed, sampled, firsts if kv.computed % 2 else None)
        session.source.outgoing.commit(session.outgoing)

    def _abort(self, session):
        had_blocks = session.incoming.state in HOLDING
        session.target.incoming.abandon(session.incoming)
        if had_blocks:
            self._quarantine(session.target, session.incoming)
        self._give_up(session)

    def _give_up(self, session):
        session.over = True
        if session.outgoing is not None:
            if session.client.over:
                session.source.outgoing.cancel(session.outgoing)
            session.source.outgoing.abort(session.outgoing)
        if not session.migrating:
            session.client.over = True

    def _settle(self):
        """Sessions of cancelled clients are aborted; their incoming transfers may be abandoned already."""
        for session in self.sessions:
            if session.client.over and not session.over:
                if session.incoming.over:
                    self._quarantine(session.target, session.incoming)
                self._abort(session)

    def _quarantine(self, worker, incoming):
        if incoming.state is IncomingState.QUARANTINED:
            self.quarantined.append((worker, incoming, list(incoming.blocks)))


WEIGHTS = {"begin": 12, "end": 12, "transfer": 8, "disk": 6} | dict.fromkeys(
    ("generate", "drop", "pause", "late_write", "release", "give_back"), 2
)
OPERATIONS = [*WEIGHTS, "dispatch", "migrate", "grants", "abort", "cancel", "expire"]


@settings(max_examples=times(60), deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(10, 20),
    st.integers(1, 300),
    st.booleans(),
    st.sampled_from([(), (), (6,), (9, 9), (1, 13)]),
    st.sampled_from([0, 1, 3, 7]),
    st.sampled_from([(0, 0), (1, 0), (5, 0), (40, 0), (2, 3), (5, 40), (12, 6)]),
    st.booleans(),
)
def test_any_history_ends_with_the_reference_tokens_and_no_lost_block(
    seed, num_blocks, length, ahead, windows, drafts, tiers, draft_model
):
    """Histories come from a seed, since lists of operations drawn one by one stay too short to fill the arenas."""
    random = Random(seed)
    world = World(num_blocks * (1 + len(windows)), ahead, windows, drafts, *tiers, draft_model)
    for name in random.choices(OPERATIONS, [WEIGHTS.get(name, 1) for name in OPERATIONS], k=length):
        getattr(world, name)(random.randrange(60), random.randrange(60))
        world.check()
    world.finish()
