"""Who may start now, who waits in the gateway, who is refused. Pure: time and fleet are arguments, nothing is awaited.

Order. Of the held requests the highest priority goes first, but a priority passed over `patience` times in a row while
somebody waits in it has the next turn: no priority starves another. Within a priority, the tenant that was served
the fewest tokens goes first (the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024: prompt tokens count 1, output tokens `output_weight`; a tenant that comes back from idleness is lifted to
the least of those waiting, so that idleness earns no credit). Within a tenant, first come, first served. When the
next request does not fit, nothing overtakes it: large requests do not starve either.
"""

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from legato_gateway.admission.capacity import Capacity
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_protocol.demand import WaitCause

QUEUE_FULL = "queue_full"
DEADLINE = "deadline_unmeetable"
TOO_LARGE = "too_large"
QUOTA = "tenant_quota"

MAX_TENANTS = 8192  # whose service is remembered, beside those with requests here


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that wants to start. `uncached` prompt tokens no worker holds; `deadline` is on the clock of `now`.

    `matches` are the leading blocks of it that workers hold, by worker: they need no room there.
    """

    tenant: str
    need: Need  # its `id` is the ticket's
    uncached: int
    deadline: float
    priority: int = 0  # higher goes first
    matches: Matches = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.need.id


@dataclass(frozen=True, slots=True)
class Admit:
    """It starts now."""


@dataclass(frozen=True, slots=True)
class Hold:
    """It waits here; a later `next` names it."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is not kept. `quota`: the tenant's own doing (429); otherwise the service is overloaded (503)."""

    reason: str
    message: str
    retry_after: float
    quota: bool = False


Decision = Admit | Hold | Refuse


@dataclass(frozen=True, slots=True)
class Quota:
    """A tenant's token bucket: `rate` tokens per second, at most `burst` saved up."""

    rate: float
    burst: float


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much is held, and how service is shared."""

    max_held: int = 2048
    max_held_tokens: int = 4_000_000
    backlog_seconds: float = 2.0  # of prefill work that workers may have queued before requests are held here
    min_backlog_tokens: int = 8192  # … but never less than this
    patience: int = 8
    output_weight: float = 2.0
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # by tenant; "*" is everyone else's


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


@dataclass(slots=True)
class _Started:
    tenant: str
    completion: int = 0


class _Class:
    """Held tickets of one priority, by tenant, each tenant's in order of arrival."""

    def __init__(self) -> None:
        self.tenants: dict[str, deque[Ticket]] = {}
        self.passed_over = 0

    def tokens_of(self, tenant: str) -> int:
        return sum(ticket.uncached for ticket in self.tenants.get(tenant, ()))


class Admission:
    """The queue of one gateway."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self._limits = limits or AdmissionLimits()
        self._classes: dict[int, _Class] = {}
        self._held: dict[str, Ticket] = {}
        self._held_tokens = 0
        self._obstacle: WaitCause = "no_worker"  # of the first held one
        self._started: dict[str, _Started] = {}
        self._counters: dict[str, float] = {}  # tokens served by tenant, weighted and lifted
        self._floor = 0.0  # the highest counter at which a tenant was started
        self._buckets: dict[str, _Bucket] = {}

    # ── what the relay calls ────────────────────────────────────────────────────────────────────────────────────────

    def offer(self, ticket: Ticket, snapshot: FleetSnapshot, now: float) -> Decision:
        """What becomes of a new request."""
        capacity = self._capacity(snapshot)
        refusal = self._over_quota(ticket, now) or self._unservable(ticket, capacity, now)
        if refusal:
            return refusal
        if not self._held and capacity.take(ticket.need, ticket.uncached, ticket.matches):
            self._lift(ticket.tenant)
            self._start(ticket, now)
            return Admit()
        if full := self._queue_full(ticket, capacity):
            return full
        if not self._held:
            self._obstacle = capacity.obstacle(ticket.need, ticket.matches)
        self._hold(ticket)
        return Hold()

    def next(self, snapshot: FleetSnapshot, now: float) -> list[str]:
        """Ids of the held requests that start now, in order. Call it whenever the fleet or its load has changed."""
        capacity = self._capacity(snapshot)
        started = []
        self._obstacle = "no_worker"
        while (found := self._turn(capacity)) is not None:
            priority, ticket = found
            if not capacity.take(ticket.need, ticket.uncached, ticket.matches):
                self._obstacle = capacity.obstacle(ticket.need, ticket.matches)
                break
            self._pass_over(priority)
            self._drop(ticket)
            self._start(ticket, now)
            started.append(ticket.id)
        return started

    def progress(self, id: str, completion_tokens: int) -> None:
        """A started request has `completion_tokens` so far, over all its choices: its tenant was served them."""
        started = self._started.get(id)
        if started is not None and completion_tokens > started.completion:
            self._charge(started.tenant, self._limits.output_weight * (completion_tokens - started.completion))
            started.completion = completion_tokens

    def finished(self, id: str, completion_tokens: int) -> None:
        """A started request ended, in whatever way."""
        self.progress(id, completion_tokens)
        self._started.pop(id, None)

    def cancel(self, id: str) -> None:
        """A request is wanted no more, held or started. Unknown ids are no error."""
        if (ticket := self._held.get(id)) is not None:
            self._drop(ticket)
        self._started.pop(id, None)

    @property
    def held(self) -> int:
        """Requests waiting here."""
        return len(self._held)

    @property
    def held_tokens(self) -> int:
        """Uncached prompt tokens waiting here: the gateway's part of the queue tokens."""
        return self._held_tokens

    @property
    def obstacle(self) -> WaitCause | None:
        """What the first of the held requests waits for, as of the last look; None when nobody is held."""
        return self._obstacle if self._held else None

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
        queued = [t for c in self._classes.values() for tickets in c.tenants.values() for t in tickets]
        assert {t.id for t in queued} == set(self._held), "held tickets and queues differ"
        assert len(queued) == len(self._held), "a ticket is queued twice"
        assert sum(t.uncached for t in queued) == self._held_tokens, "held tokens are miscounted"
        assert not self._held.keys() & self._started.keys(), "a ticket is held and started"
        assert all(c.tenants and all(c.tenants.values()) for c in self._classes.values()), "an empty queue is kept"

    # ── refusing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _capacity(self, snapshot: FleetSnapshot) -> Capacity:
        return Capacity(snapshot, self._limits.backlog_seconds, self._limits.min_backlog_tokens)

    def _over_quota(self, ticket: Ticket, now: float) -> Refuse | None:
        quota = self._quota(ticket.tenant)
        if quota is None or (level := self._bucket(ticket.tenant, quota, now).level) > 0:
            return None
        wait = (1 - level) / quota.rate if quota.rate > 0 else 3600.0
        return Refuse(QUOTA, f"the token quota of tenant {ticket.tenant!r} is used up", wait, quota=True)

    def _unservable(self, ticket: Ticket, capacity: Capacity, now: float) -> Refuse | None:
        if why := capacity.never_fits(ticket.need):
            return Refuse(TOO_LARGE, f"no worker can hold this request: {why}", 60.0)
        wait = capacity.seconds(self._tokens_before(ticket) + ticket.uncached)
        left = ticket.deadline - now
        if wait <= left:
            return None
        text = f"the first token is about {wait:.1f} s away, beyond the deadline in {max(0.0, left):.1f} s"
        return Refuse(DEADLINE, text, max(1.0, wait - left))

    def _queue_full(self, ticket: Ticket, capacity: Capacity) -> Refuse | None:
        limits = self._limits
        too_many = len(self._held) >= limits.max_held
        if not too_many and self._held_tokens + ticket.uncached <= limits.max_held_tokens:
            return None
        text = f"{len(self._held)} requests with {self._held_tokens} prompt tokens are waiting already"
        return Refuse(QUEUE_FULL, text, max(1.0, capacity.seconds(self._held_tokens)))

    def _tokens_before(self, ticket: Ticket) -> int:
        """Held prompt tokens that will be started before `ticket`, as fair sharing goes."""
        before = 0.0
        for priority, group in self._classes.items():
            if priority > ticket.priority:
                before += sum(group.tokens_of(tenant) for tenant in group.tenants)
            elif priority == ticket.priority:
                own = group.tokens_of(ticket.tenant)
                mine = max(self._counters.get(ticket.tenant, 0.0), self._least_waiting()) + own
                others = (tenant for tenant in group.tenants if tenant != ticket.tenant)
                before += own
                before += sum(min(group.tokens_of(t), max(0.0, mine - self._counters[t])) for t in others)
        return int(before)

    # ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, ticket: Ticket) -> None:
        self._lift(ticket.tenant)
        group = self._classes.setdefault(ticket.priority, _Class())
        group.tenants.setdefault(ticket.tenant, deque()).append(ticket)
        self._held[ticket.id] = ticket
        self._held_tokens += ticket.uncached
        self._bound_memory()

    def _drop(self, ticket: Ticket) -> None:
        group = self._classes[ticket.priority]
        queue = group.tenants[ticket.tenant]
        queue.remove(ticket)
        if not queue:
            del group.tenants[ticket.tenant]
        if not group.tenants:
            del self._classes[ticket.priority]
        del self._held[ticket.id]
        self._held_tokens -= ticket.uncached

    def _turn(self, capacity: Capacity) -> tuple[int, Ticket] | None:
        """Whose turn it is. A request that no worker of this fleet could ever take holds up nobody."""
        impatient = [p for p, group in self._classes.items() if group.passed_over >= self._limits.patience]
        order = sorted(impatient, key=lambda p: -self._classes[p].passed_over) + sorted(self._classes, reverse=True)
        for priority in order:
            tenants = self._classes[priority].tenants
            for tenant in sorted(tenants, key=lambda name: (self._counters[name], name)):
                for ticket in tenants[tenant]:
                    if not capacity.never_fits(ticket.need):
                        return priority, ticket
        return None

    def _pass_over(self, chosen: int) -> None:
        for priority, group in self._classes.items():
            if priority < chosen:
                group.passed_over += 1
        self._classes[chosen].passed_over = 0

    # ── fairness and quota ──────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, ticket: Ticket, now: float) -> None:
        self._started[ticket.id] = _Started(ticket.tenant)
        quota = self._quota(ticket.tenant)
        if quota is not None:
            self._buckets[ticket.tenant] = self._bucket(ticket.tenant, quota, now)
            self._bound_buckets(now)
        self._charge(ticket.tenant, ticket.uncached)
        self._floor = max(self._floor, self._counters[ticket.tenant])
        self._bound_memory()

    def _charge(self, tenant: str, tokens: float) -> None:
        self._counters[tenant] += tokens
        if tenant in self._buckets:
            self._buckets[tenant].level -= tokens

    def _lift(self, tenant: str) -> None:
        """A tenant with nothing waiting gets no credit for the time it was idle."""
        if not any(tenant in group.tenants for group in self._classes.values()):
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._least_waiting())

    def _waiting(self) -> set[str]:
        return set(itertools.chain.from_iterable(group.tenants for group in self._classes.values()))

    def _least_waiting(self) -> float:
        return min((self._counters[tenant] for tenant in self._waiting()), default=self._floor)

    def _busy(self) -> set[str]:
        """Tenants with requests here."""
        return self._waiting() | {started.tenant for started in self._started.values()}

    def _bound_memory(self) -> None:
        """Tenants are named by clients, so their number is bounded: the least served idle ones are forgotten."""
        if len(self._counters) <= MAX_TENANTS:
            return
        busy = self._busy()
        idle = sorted((tenant for tenant in self._counters if tenant not in busy), key=self._counters.__getitem__)
        for tenant in idle[: MAX_TENANTS // 2]:
            del self._counters[tenant]

    def _bound_buckets(self, now: float) -> None:
        """A bucket that is full again need not be kept. If that is not enough, those that lack least are forgotten."""
        if len(self._buckets) <= MAX_TENANTS:
            return
        busy = self._busy() | self._limits.quotas.keys()  # whose quota is their own: not named at random
        lacking = {}
        for tenant in self._buckets.keys() - busy:
            if (quota := self._quota(tenant)) is not None:
                lacking[tenant] = 1 - self._bucket(tenant, quota, now).level / quota.burst
        for count, tenant in enumerate(sorted(lacking, key=lacking.__getitem__)):
            if lacking[tenant] > 0 and count >= MAX_TENANTS // 2:
                break
            del self._buckets[tenant]

    def _quota(self, tenant: str) -> Quota | None:
        return self._limits.quotas.get(tenant) or self._limits.quotas.get("*")

    def _bucket(self, tenant: str, quota: Quota, now: float) -> _Bucket:
        """The tenant's bucket at `now`; a full one where none is kept."""
        bucket = self._buckets.get(tenant) or _Bucket(quota.burst, now)
        bucket.level = min(quota.burst, bucket.level + quota.rate * max(0.0, now - bucket.at))
        bucket.at = max(bucket.at, now)
        return bucket
