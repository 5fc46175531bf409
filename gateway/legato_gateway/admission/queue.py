"""Admits, queues or refuses requests. Pure: time and fleet are arguments, nothing is awaited.

Order. Priorities are weights, see `priority_level`. Within a level of priority, the tenant that was served the fewest
tokens goes first (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024:
prompt tokens count 1, output tokens `output_weight`; a tenant that returns from idleness is lifted to the least counter
of the waiting ones, so that idleness earns no credit). Tokens that workers served a tenant through other gateways count
as well. Within a tenant, the earliest deadline goes first. Deadlines more than `urgent_within` seconds away on arrival
count as equal, so nobody new passes a request that waits for that long. When the next request has no room, smaller ones
may start before it, see `backfill`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from legato_gateway.admission.backfill import Reservation
from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.overload import OverloadGuard
from legato_gateway.admission.queued_tickets import QueuedTickets
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
from legato_protocol.wire.demand import WaitCause
from legato_protocol.wire.load import TenantService

TRIES = 16  # requests without room per pass, which bounds the cost of a long queue …
TRIES_PER_TENANT = 8  # … and a tenant's large ones leave some for the others
FIRST_PROMPT_BACKLOGS = 2  # multiple of the usual backlog, for a tenant's only prompt


WorkerLimits = frozenset[tuple[int, int, int]]


@dataclass(slots=True)
class _Started:
    tenant: str
    completion: int = 0


class Admission:
    """The queue of one gateway."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self._limits = limits or AdmissionLimits()
        self._tickets = QueuedTickets(self._limits.urgent_within)
        self._reservation: Reservation | None = None
        self._obstacle: WaitCause = "no_worker"  # of the first queued request
        self._judged_by: WorkerLimits | None = None  # worker limits that all queued requests were checked by, or None
        self._started: dict[str, _Started] = {}
        self._prompts: Counter[str] = Counter()  # started and without a token, by tenant
        self._counters = TenantCounters()
        self._buckets = TokenBuckets(self._limits.quotas)
        self._overload = OverloadGuard(self._limits.refuse_beyond)

    # ── the relay's calls ───────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, ticket: Ticket, snapshot: FleetSnapshot, now: float) -> Decision:
        """Admits, queues or refuses a new request."""
        capacity = self._capacity(snapshot)
        self._overload.pace.advance(self.obstacle not in (None, "no_worker"), now)
        refusal = self._over_quota(ticket, now) or self._unservable(ticket, capacity, now)
        if refusal := refusal or self._late(ticket, capacity, now):
            return refusal
        first = ticket.tenant not in self._tickets.tenants and self._may_go_first(ticket.tenant)
        passes = not self._tickets or (first and self._obstacle == "prefill")
        backlogs = FIRST_PROMPT_BACKLOGS if first else 1
        if passes and capacity.take(ticket.need, ticket.uncached, ticket.matches, backlogs):
            self._lift(ticket.tenant)
            self._start(ticket, now)
            return Admit()
        if full := self._queue_full(ticket, capacity, now):
            return full
        ticket = ticket.while_queued()
        self._hold(ticket, now)
        if self._judged_by != _limits(snapshot):  # workers may come back with their earlier limits
            self._judged_by = None
        may_fit = len(self._tickets) == 1 or capacity.fits(ticket.need, ticket.uncached, ticket.matches)
        if may_fit and self._take_next(capacity, now, set()) is ticket:
            self._start_queued(ticket, now)
            return Admit()
        return Hold()

    def next(self, snapshot: FleetSnapshot, now: float) -> list[str]:
        """Returns ids of queued requests that start now, in order.

        Call it whenever the fleet or its load has changed.
        """
        capacity = self._capacity(snapshot)
        self._overload.pace.advance(self.obstacle not in (None, "no_worker"), now)
        started: list[str] = []
        without_room: set[str] = set()
        self._obstacle = "no_worker"
        while (ticket := self._take_next(capacity, now, without_room)) is not None:
            self._start_queued(ticket, now)
            started.append(ticket.id)
        return started + self._start_first_prompts(capacity, now)

    def outgrown(self, snapshot: FleetSnapshot) -> list[tuple[str, Refuse]]:
        """Returns queued requests that no known worker can hold: they arrived when others, or none, were known.

        The caller ends them. Queued requests are checked only when the limits of workers have changed.
        """
        limits = _limits(snapshot)
        if limits == self._judged_by:
            return []
        self._judged_by, capacity = limits, self._capacity(snapshot)
        judged = [(ticket.id, self._too_large(ticket, capacity)) for ticket in self._tickets]
        return [(id, refusal) for id, refusal in judged if refusal is not None]

    def progress(self, id: str, completion_tokens: int) -> None:
        """Charges the tenant of a started request for `completion_tokens` so far, over all its choices."""
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
        """Ends a started request, with or without success."""
        self.progress(id, completion_tokens)
        self._end(id)

    def served_elsewhere(self, served: Mapping[str, TenantService], now: float) -> None:
        """Charges tenants for service through other gateways, as if their requests had started here."""
        for tenant, service in served.items():
            if tenant not in self._counters:
                self._lift(tenant)
            self._buckets.open(tenant, now, self._busy)
            self._charge(tenant, service.prompt + self._limits.output_weight * service.output)
            if service.prompt:
                self._counters.started(tenant)
        self._counters.bound(self._busy)

    def cancel(self, id: str) -> None:
        """Forgets a request, queued or started. Unknown ids are ignored."""
        if (ticket := self._tickets.get(id)) is not None:
            self._tickets.remove(ticket)
            self._release(ticket)
        self._end(id)

    @property
    def queued(self) -> int:
        """Number of queued requests."""
        return len(self._tickets)

    @property
    def queued_tokens(self) -> int:
        """Uncached prompt tokens of queued requests: the gateway's part of the queue tokens."""
        return self._tickets.tokens

    @property
    def queued_cost(self) -> int:
        """The tokens of usual prompts that take as long as the queued ones."""
        return self._tickets.cost

    def alternating_tenants(self, tenant: str) -> int:
        """Returns the number of tenants whose prompts workers alternate between, if `tenant` has no other prompt there
        than the one that starts now; else 0."""
        return len(self._prompts) if self._prompts[tenant] <= 1 and self._shares(tenant) else 0

    @property
    def obstacle(self) -> WaitCause | None:
        """The cause for which the first queued request waited in the last pass; None: the queue is empty."""
        return self._obstacle if self._tickets else None

    def check_integrity(self) -> None:
        """Raises AssertionError unless all parts are consistent."""
        self._tickets.check_integrity(self._counters)
        assert all(id not in self._tickets for id in self._started), "a ticket is queued and started"
        if self._reservation is not None:
            assert self._reservation.ticket.id in self._tickets, "a reservation is kept for nobody"
            assert self._reservation.passed.keys() <= self._started.keys(), "who passed and has ended is kept"
        prompts = Counter(started.tenant for started in self._started.values() if not started.completion)
        assert prompts == self._prompts, "prompts at workers are miscounted"

    # ── refusing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _capacity(self, snapshot: FleetSnapshot) -> Capacity:
        return Capacity(snapshot, self._limits, self._tickets.cost)

    def _over_quota(self, ticket: Ticket, now: float) -> Refuse | None:
        """Refuses a tenant over its quota. Its queued tokens count as started: a full fleet does not extend a quota."""
        if not self._buckets.limits(ticket.tenant):
            return None
        wait = self._buckets.seconds_short(ticket.tenant, self._tickets.tenant_tokens(ticket.tenant), now)
        if wait is None:
            return None
        return Refuse(QUOTA, f"the token quota of tenant {ticket.tenant!r} is used up", wait, quota=True)

    def _unservable(self, ticket: Ticket, capacity: Capacity, now: float) -> Refuse | None:
        choices, most = ticket.need.choices, capacity.most_choices
        if most is not None and choices > most:
            return Refuse(TOO_MANY_CHOICES, f"{choices} choices of one prompt; at most {most} run concurrently", 60.0)
        if refusal := self._too_large(ticket, capacity):
            return refusal
        if why := capacity.never_takes(ticket.need):
            return Refuse(NO_WORKER, f"no worker can take this request: {why}", 60.0)
        left = ticket.deadline - now
        if capacity.seconds(self._tickets.cost + ticket.cost) <= left:
            return None  # in whatever order the queued ones start
        wait = capacity.seconds(self._tickets.cost_before(ticket, self._counters, now) + ticket.cost)
        if wait <= left:
            return None
        text = f"the first token is about {wait:.1f} s away, beyond the deadline in {max(0.0, left):.1f} s"
        return Refuse(DEADLINE, text, self._retry_after(wait - left, ticket, capacity, now))

    def _late(self, ticket: Ticket, capacity: Capacity, now: float) -> Refuse | None:
        """Refuses a request that would miss the objective for the first token, if the policy is to refuse it."""
        if self._limits.refuse_beyond is None:
            return None
        queued, cost = len(self._tickets), self._tickets.cost
        before = self._tickets.cost_before(ticket, self._counters, now) if cost else 0
        return self._overload.check(ticket, capacity, round(queued * before / max(1, cost)), before, now)

    def _retry_after(self, least: float, ticket: Ticket, capacity: Capacity, now: float) -> float:
        """Returns when to retry: at least 1 s from now, and after the work of clients that were refused before."""
        return self._overload.retries.after(max(1.0, least), capacity.work_seconds(ticket.cost), now)

    def _too_large(self, ticket: Ticket, capacity: Capacity) -> Refuse | None:
        why = capacity.never_fits(ticket.need)
        return Refuse(TOO_LARGE, f"no worker can hold this request: {why}", 60.0) if why else None

    def _queue_full(self, ticket: Ticket, capacity: Capacity, now: float) -> Refuse | None:
        limits, tickets = self._limits, self._tickets
        if len(tickets) < limits.max_queued and tickets.tokens + ticket.uncached <= limits.max_queued_tokens:
            return None
        text = f"{len(tickets)} requests with {tickets.tokens} prompt tokens are waiting already"
        return Refuse(QUEUE_FULL, text, self._retry_after(capacity.seconds(tickets.cost), ticket, capacity, now))

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_next(self, capacity: Capacity, now: float, without_room: set[str]) -> Ticket | None:
        """Takes room for the next ticket that can start. Tickets in `without_room` had none in this capacity before."""
        for ticket in self._candidates(capacity, now):
            if ticket.id in without_room:
                continue
            if len(without_room) > TRIES:
                return None
            if self._may_start(ticket, capacity, now):
                if capacity.take(ticket.need, ticket.uncached, ticket.matches):
                    return ticket
                if not without_room:
                    self._block(ticket, capacity, now)
                if self._obstacle == "prefill" or capacity.prompts_queue(ticket.uncached):
                    return None  # such room is freed soon, for the next one
            without_room.add(ticket.id)
        return None

    def _candidates(self, capacity: Capacity, now: float) -> Iterator[Ticket]:
        """Yields tickets in starting order, without those that no worker of this fleet can ever take."""

        def startable(ticket: Ticket) -> bool:
            return not capacity.never_takes(ticket.need)

        if (reservation := self._reservation) is not None and now >= reservation.until:
            if startable(reservation.ticket):
                yield reservation.ticket
            else:
                self._reservation = None
        yield from self._tickets.tickets(TRIES_PER_TENANT, startable)

    def _block(self, ticket: Ticket, capacity: Capacity, now: float) -> None:
        """Reserves room for the first ticket, which has none. Without any worker for it, it blocks nobody."""
        self._obstacle = capacity.obstacle(ticket.need, ticket.matches)
        if self._obstacle == "no_worker":
            self._release(ticket)
        elif self._reservation is None:
            self._reservation = Reservation(ticket, now + self._limits.backfill_seconds)

    def _may_start(self, ticket: Ticket, capacity: Capacity, now: float) -> bool:
        """True if it may start given room: there is no reservation, or it has the reservation, or it may pass."""
        if self._reservation is None or self._reservation.ticket is ticket:
            return True
        first = self._reservation.ticket
        if self._counters[ticket.tenant] > self._counters[first.tenant] + first.cost:
            return False
        if ticket.priority < first.priority and self._tickets.ahead(ticket) > first.cost:
            return False
        return self._reservation.leaves_room(ticket, capacity, now)

    def _hold(self, ticket: Ticket, now: float) -> None:
        self._lift(ticket.tenant)
        self._tickets.add(ticket, self._counters[ticket.tenant], now)
        self._counters.bound(self._busy)

    def _start_queued(self, ticket: Ticket, now: float) -> None:
        self._tickets.started(ticket)
        self._overload.pace.count_start()
        self._release(ticket)
        if self._reservation is not None:
            self._reservation.pass_by(ticket)
        self._start(ticket, now)

    def _release(self, ticket: Ticket) -> None:
        """Drops its reservation, if any."""
        if self._reservation is not None and self._reservation.ticket is ticket:
            self._reservation = None

    def _start(self, ticket: Ticket, now: float) -> None:
        self._started[ticket.id] = _Started(ticket.tenant)
        self._prompts[ticket.tenant] += 1
        self._buckets.open(ticket.tenant, now, self._busy)
        self._charge(ticket.tenant, ticket.cost, ticket.uncached)
        self._counters.started(ticket.tenant)
        self._counters.bound(self._busy)

    def _start_first_prompts(self, capacity: Capacity, now: float) -> list[str]:
        """Starts one prompt each of tenants that only wait for shorter queues, and have no prompt in them."""
        if self._obstacle != "prefill":
            return []
        started = []
        for tenant in [each for each in islice(self._tickets.tenants, TRIES) if self._may_go_first(each)]:
            ticket = self._tickets.first_ticket(tenant)
            if capacity.take(ticket.need, ticket.uncached, ticket.matches, FIRST_PROMPT_BACKLOGS):
                self._start_queued(ticket, now)
                started.append(ticket.id)
        return started

    def _may_go_first(self, tenant: str) -> bool:
        """True if there are other tenants, and no prompt of this one is on a worker.

        Workers alternate between the prompts of tenants, so other tenants' long queues do not delay it.
        """
        return not self._prompts[tenant] and self._shares(tenant)

    def _shares(self, tenant: str) -> bool:
        """True if there are other tenants."""
        return len(self._counters) > (tenant in self._counters)

    def _computed(self, started: _Started) -> None:
        """Counts the prompt of a request as computed."""
        self._prompts[started.tenant] -= 1
        if not self._prompts[started.tenant]:
            del self._prompts[started.tenant]

    def _end(self, id: str) -> None:
        started = self._started.pop(id, None)
        if started is not None and not started.completion:
            self._computed(started)
        if self._reservation is not None:
            self._reservation.passed.pop(id, None)

    # ── tenants' counters ───────────────────────────────────────────────────────────────────────────────────────────

    def _charge(self, tenant: str, cost: float, tokens: float | None = None) -> None:
        """Charges its share of service for `cost`, and its quota for `tokens`, which are the cost if not given."""
        self._counters.charge(tenant, cost)
        self._tickets.reorder(tenant, self._counters[tenant])
        self._buckets.charge(tenant, cost if tokens is None else tokens)

    def _lift(self, tenant: str) -> None:
        """Gives a tenant with an empty queue no credit for its idle time."""
        if tenant not in self._tickets.tenants:
            self._counters.lift(tenant, self._tickets.tenants.least)

    def _busy(self) -> set[str]:
        """Returns the tenants with requests here."""
        return {*self._tickets.tenants} | {started.tenant for started in self._started.values()}


def _limits(snapshot: FleetSnapshot) -> WorkerLimits:
    """Returns the limits of decoding workers: tokens per sequence, tokens in all, and sequences."""
    decoders = (worker for worker in snapshot.workers if worker.decodes)
    return frozenset((worker.max_length, worker.num_blocks * worker.block_size, worker.slots) for worker in decoders)
