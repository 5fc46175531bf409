"""Who may start now, who waits in the gateway, who is refused. Pure: time and fleet are arguments, nothing is awaited.

Order. Priorities are weights, see `priority_shares`. Within a level of priority, the tenant that was served the fewest
tokens goes first (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024:
prompt tokens count 1, output tokens `output_weight`; a tenant that comes back from idleness is lifted to the least of
those waiting, so that idleness earns no credit). What workers served a tenant through other gateways counts as well.
Within a tenant, the earliest deadline goes first; those more than `urgent_within` seconds away on arrival are all
alike, so that whoever waits so long is passed by nobody new. When the next request has no room, smaller ones may start
before it, as `backfill` says.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from legato_gateway.admission.backfill import Reservation
from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.held_tickets import HeldTickets
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.tenant_counters import TenantCounters
from legato_gateway.admission.ticket import (
    DEADLINE,
    NO_WORKER,
    QUEUE_FULL,
    QUOTA,
    TOO_LARGE,
    TOO_MANY_CHOICES,
    Admit,
    Decision,
    Hold,
    Refuse,
    Ticket,
)
from legato_gateway.admission.token_buckets import TokenBuckets
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_protocol.demand import WaitCause
from legato_protocol.load import TenantService

LOOKS = 16  # at requests without room, in one turn, so that a long queue costs no more …
LOOKS_PER_TENANT = 8  # … and a tenant's large ones leave some for the others
FIRST_PROMPT_BACKLOGS = 2  # times the usual backlog, for the only prompt of a tenant


WorkerLimits = frozenset[tuple[int, int, int]]


@dataclass(slots=True)
class _Started:
    tenant: str
    completion: int = 0


class Admission:
    """The queue of one gateway."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self._limits = limits or AdmissionLimits()
        self._held = HeldTickets(self._limits.urgent_within)
        self._reservation: Reservation | None = None
        self._obstacle: WaitCause = "no_worker"  # of the first held one
        self._judged_by: WorkerLimits | None = None  # limits by which all held requests were judged; None: not all were
        self._started: dict[str, _Started] = {}
        self._prompts: Counter[str] = Counter()  # started and without a token, by tenant
        self._counters = TenantCounters()
        self._buckets = TokenBuckets(self._limits.quotas)

    # ── what the relay calls ────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, ticket: Ticket, snapshot: FleetSnapshot, now: float) -> Decision:
        """What becomes of a new request."""
        capacity = self._capacity(snapshot)
        refusal = self._over_quota(ticket, now) or self._unservable(ticket, capacity, now)
        if refusal:
            return refusal
        first = ticket.tenant not in self._held.tenants and self._has_turn(ticket.tenant)
        passes = not self._held or (first and self._obstacle == "prefill")
        backlogs = FIRST_PROMPT_BACKLOGS if first else 1
        if passes and capacity.take(ticket.need, ticket.uncached, ticket.matches, backlogs):
            self._lift(ticket.tenant)
            self._start(ticket, now)
            return Admit()
        if full := self._queue_full(ticket, capacity):
            return full
        ticket = ticket.while_held()
        self._hold(ticket, now)
        if self._judged_by != _limits(snapshot):  # workers may come back with the limits of before
            self._judged_by = None
        may_fit = len(self._held) == 1 or capacity.fits(ticket.need, ticket.uncached, ticket.matches)
        if may_fit and self._turn(capacity, now, set()) is ticket:
            self._start_held(ticket, now)
            return Admit()
        return Hold()

    def next(self, snapshot: FleetSnapshot, now: float) -> list[str]:
        """Ids of the held requests that start now, in order. Call it whenever the fleet or its load has changed."""
        capacity = self._capacity(snapshot)
        started: list[str] = []
        without_room: set[str] = set()
        self._obstacle = "no_worker"
        while (ticket := self._turn(capacity, now, without_room)) is not None:
            self._start_held(ticket, now)
            started.append(ticket.id)
        return started + self._start_first_prompts(capacity, now)

    def outgrown(self, snapshot: FleetSnapshot) -> list[tuple[str, Refuse]]:
        """Returns held requests that no known worker can hold: they arrived when others, or none, were known.

        The caller ends them. Held requests are judged only when the limits of workers have changed.
        """
        limits = _limits(snapshot)
        if limits == self._judged_by:
            return []
        self._judged_by, capacity = limits, self._capacity(snapshot)
        judged = [(ticket.id, self._too_large(ticket, capacity)) for ticket in self._held]
        return [(id, refusal) for id, refusal in judged if refusal is not None]

    def progress(self, id: str, completion_tokens: int) -> None:
        """A started request has `completion_tokens` so far, over all its choices: its tenant was served them."""
        started = self._started.get(id)
        if started is not None and completion_tokens > started.completion:
            if not started.completion:
                self._computed(started)
            made = completion_tokens - started.completion
            self._charge(started.tenant, self._limits.output_weight * made)
            if self._reservation is not None:
                self._reservation.progress(id, made)
            started.completion = completion_tokens

    def finished(self, id: str, completion_tokens: int) -> None:
        """A started request ended, in whatever way."""
        self.progress(id, completion_tokens)
        self._end(id)

    def served_elsewhere(self, served: Mapping[str, TenantService], now: float) -> None:
        """Tenants were served through other gateways: it counts as if their requests had started here."""
        for tenant, service in served.items():
            if tenant not in self._counters:
                self._lift(tenant)
            self._buckets.open(tenant, now, self._busy)
            self._charge(tenant, service.prompt + self._limits.output_weight * service.output)
            if service.prompt:
                self._counters.started(tenant)
        self._counters.bound(self._busy)

    def cancel(self, id: str) -> None:
        """A request is wanted no more, held or started. Unknown ids are no error."""
        if (ticket := self._held.get(id)) is not None:
            self._held.remove(ticket)
            self._release(ticket)
        self._end(id)

    @property
    def held(self) -> int:
        """Requests waiting here."""
        return len(self._held)

    @property
    def held_tokens(self) -> int:
        """Uncached prompt tokens waiting here: the gateway's part of the queue tokens."""
        return self._held.tokens

    def turns(self, tenant: str) -> int:
        """Tenants with prompts at workers, which compute them in turn, if this one has no other there than the one that
        starts now; else 0."""
        return len(self._prompts) if self._prompts[tenant] <= 1 and self._shares(tenant) else 0

    @property
    def obstacle(self) -> WaitCause | None:
        """What the first of the held requests waits for, as of the last look; None when nobody is held."""
        return self._obstacle if self._held else None

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
        self._held.check_integrity(self._counters)
        assert all(id not in self._held for id in self._started), "a ticket is held and started"
        if self._reservation is not None:
            assert self._reservation.ticket.id in self._held, "a reservation is kept for nobody"
            assert self._reservation.passed.keys() <= self._started.keys(), "who passed and has ended is kept"
        prompts = Counter(started.tenant for started in self._started.values() if not started.completion)
        assert prompts == self._prompts, "prompts at workers are miscounted"

    # ── refusing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _capacity(self, snapshot: FleetSnapshot) -> Capacity:
        return Capacity(snapshot, self._limits, self._held.tokens)

    def _over_quota(self, ticket: Ticket, now: float) -> Refuse | None:
        """What the tenant has waiting here counts as if it had started: a full fleet is no way around a quota."""
        if not self._buckets.limits(ticket.tenant):
            return None
        wait = self._buckets.seconds_short(ticket.tenant, self._held.tokens_of(ticket.tenant), now)
        if wait is None:
            return None
        return Refuse(QUOTA, f"the token quota of tenant {ticket.tenant!r} is used up", wait, quota=True)

    def _unservable(self, ticket: Ticket, capacity: Capacity, now: float) -> Refuse | None:
        choices, most = ticket.need.choices, capacity.most_choices
        if most is not None and choices > most:
            return Refuse(TOO_MANY_CHOICES, f"{choices} choices of one prompt; at most {most} run at once", 60.0)
        if refusal := self._too_large(ticket, capacity):
            return refusal
        if why := capacity.never_takes(ticket.need):
            return Refuse(NO_WORKER, f"no worker can take this request: {why}", 60.0)
        left = ticket.deadline - now
        if capacity.seconds(self._held.tokens + ticket.uncached) <= left:
            return None  # in whatever order the held ones start
        wait = capacity.seconds(self._held.tokens_before(ticket, self._counters, now) + ticket.uncached)
        if wait <= left:
            return None
        text = f"the first token is about {wait:.1f} s away, beyond the deadline in {max(0.0, left):.1f} s"
        return Refuse(DEADLINE, text, max(1.0, wait - left))

    def _too_large(self, ticket: Ticket, capacity: Capacity) -> Refuse | None:
        why = capacity.never_fits(ticket.need)
        return Refuse(TOO_LARGE, f"no worker can hold this request: {why}", 60.0) if why else None

    def _queue_full(self, ticket: Ticket, capacity: Capacity) -> Refuse | None:
        limits, held = self._limits, self._held
        if len(held) < limits.max_held and held.tokens + ticket.uncached <= limits.max_held_tokens:
            return None
        text = f"{len(held)} requests with {held.tokens} prompt tokens are waiting already"
        return Refuse(QUEUE_FULL, text, max(1.0, capacity.seconds(held.tokens)))

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _turn(self, capacity: Capacity, now: float, without_room: set[str]) -> Ticket | None:
        """Takes room for the ticket whose turn it is. Those `without_room` found none in this capacity before."""
        for ticket in self._candidates(capacity, now):
            if ticket.id in without_room:
                continue
            if len(without_room) > LOOKS:
                return None
            if self._may_start(ticket, capacity, now):
                if capacity.take(ticket.need, ticket.uncached, ticket.matches):
                    return ticket
                if not without_room:
                    self._block(ticket, capacity, now)
                if self._obstacle == "prefill" or capacity.prompts_queue(ticket.uncached):
                    return None  # this room comes soon, for whoever is next
            without_room.add(ticket.id)
        return None

    def _candidates(self, capacity: Capacity, now: float) -> Iterator[Ticket]:
        """In the order in which they are to start. One that no worker of this fleet could ever take holds up nobody."""

        def startable(ticket: Ticket) -> bool:
            return not capacity.never_takes(ticket.need)

        if (reservation := self._reservation) is not None and now >= reservation.until:
            if startable(reservation.ticket):
                yield reservation.ticket
            else:
                self._reservation = None
        yield from self._held.tickets(LOOKS_PER_TENANT, startable)

    def _block(self, ticket: Ticket, capacity: Capacity, now: float) -> None:
        """`ticket` is the first one, and has no room. As long as there is no worker for it, it holds up nobody."""
        self._obstacle = capacity.obstacle(ticket.need, ticket.matches)
        if self._obstacle == "no_worker":
            self._release(ticket)
        elif self._reservation is None:
            self._reservation = Reservation(ticket, now + self._limits.backfill_seconds)

    def _may_start(self, ticket: Ticket, capacity: Capacity, now: float) -> bool:
        """Whether it may start if there is room: there is no reservation, or it is its own, or it may pass."""
        if self._reservation is None or self._reservation.ticket is ticket:
            return True
        first = self._reservation.ticket
        if self._counters[ticket.tenant] > self._counters[first.tenant] + first.uncached:
            return False
        if ticket.priority < first.priority and self._held.ahead(ticket) > first.uncached:
            return False
        return self._reservation.leaves_room(ticket, capacity, now)

    def _hold(self, ticket: Ticket, now: float) -> None:
        self._lift(ticket.tenant)
        self._held.add(ticket, self._counters[ticket.tenant], now)
        self._counters.bound(self._busy)

    def _start_held(self, ticket: Ticket, now: float) -> None:
        self._held.started(ticket)
        self._release(ticket)
        if self._reservation is not None:
            self._reservation.pass_by(ticket)
        self._start(ticket, now)

    def _release(self, ticket: Ticket) -> None:
        """It is not held any more, nor is anything for it."""
        if self._reservation is not None and self._reservation.ticket is ticket:
            self._reservation = None

    def _start(self, ticket: Ticket, now: float) -> None:
        self._started[ticket.id] = _Started(ticket.tenant)
        self._prompts[ticket.tenant] += 1
        self._buckets.open(ticket.tenant, now, self._busy)
        self._charge(ticket.tenant, ticket.uncached)
        self._counters.started(ticket.tenant)
        self._counters.bound(self._busy)

    def _start_first_prompts(self, capacity: Capacity, now: float) -> list[str]:
        """One each of tenants that wait for nothing but shorter queues, and have no prompt in these."""
        if self._obstacle != "prefill":
            return []
        started = []
        for tenant in [each for each in islice(self._held.tenants, LOOKS) if self._has_turn(each)]:
            ticket = self._held.first_of(tenant)
            if capacity.take(ticket.need, ticket.uncached, ticket.matches, FIRST_PROMPT_BACKLOGS):
                self._start_held(ticket, now)
                started.append(ticket.id)
        return started

    def _has_turn(self, tenant: str) -> bool:
        """Whether there are other tenants, and no prompt of this one is at a worker. Workers compute prompts of tenants
        in turn: what others have queued there is not in its way, so it need not wait until that is short."""
        return not self._prompts[tenant] and self._shares(tenant)

    def _shares(self, tenant: str) -> bool:
        """Whether there are other tenants."""
        return len(self._counters) > (tenant in self._counters)

    def _computed(self, started: _Started) -> None:
        """The prompt of a request is computed."""
        self._prompts[started.tenant] -= 1
        if not self._prompts[started.tenant]:
            del self._prompts[started.tenant]

    def _end(self, id: str) -> None:
        started = self._started.pop(id, None)
        if started is not None and not started.completion:
            self._computed(started)
        if self._reservation is not None:
            self._reservation.passed.pop(id, None)

    # ── the books of tenants ────────────────────────────────────────────────────────────────────────────────────────

    def _charge(self, tenant: str, tokens: float) -> None:
        self._counters.charge(tenant, tokens)
        self._held.reorder(tenant, self._counters[tenant])
        self._buckets.charge(tenant, tokens)

    def _lift(self, tenant: str) -> None:
        """A tenant with nothing waiting gets no credit for the time it was idle."""
        if tenant not in self._held.tenants:
            self._counters.lift(tenant, self._held.tenants.least)

    def _busy(self) -> set[str]:
        """Tenants with requests here."""
        return {*self._held.tenants} | {started.tenant for started in self._started.values()}


def _limits(snapshot: FleetSnapshot) -> WorkerLimits:
    """Tokens of a sequence, tokens of all, and sequences, that the workers which decode can hold."""
    decoders = (worker for worker in snapshot.workers if worker.decodes)
    return frozenset((worker.max_length, worker.num_blocks * worker.block_size, worker.slots) for worker in decoders)
