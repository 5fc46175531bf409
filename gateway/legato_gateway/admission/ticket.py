"""Tickets, by which requests ask for admission, and the possible decisions. Pure: part of `admission`."""

from dataclasses import dataclass, field, replace

from legato_gateway.routing.filters import Matches, Need

QUEUE_FULL = "queue_full"
DEADLINE = "deadline_unmeetable"
LATE = "objective_unmeetable"
TOO_LARGE = "too_large"
NO_WORKER = "no_worker"  # no worker of this fleet can ever take it
TOO_MANY_CHOICES = "too_many_choices"
QUOTA = "tenant_quota"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that wants to start. `uncached` are prompt tokens that no worker has cached; `deadline` is on the clock
    of `now`.

    `matches` are the leading blocks that each worker has cached: they need no room there. `work` are the tokens of
    usual prompts that take as long to compute; 0: `uncached`.
    """

    tenant: str
    need: Need  # its `id` is the ticket's
    uncached: int
    deadline: float
    priority: int = 0  # higher goes first
    matches: Matches = field(default_factory=dict)
    work: int = 0

    @property
    def id(self) -> str:
        return self.need.id

    @property
    def cost(self) -> int:
        """The tokens that its tenant is charged for, and that later ones wait for."""
        return self.work or self.uncached

    def while_queued(self) -> "Ticket":
        """Returns a copy that needs room for only one output token.

        Workers that come later may have shorter limits than the known ones, so the need is computed again when the
        request starts.
        """
        return replace(self, need=replace(self.need, growth=min(self.need.growth, 1)))


@dataclass(frozen=True, slots=True)
class Admit:
    """It starts now."""


@dataclass(frozen=True, slots=True)
class Hold:
    """It is queued; a later `next` returns it."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is dropped. `quota`: because of the tenant's quota (429); otherwise the service is overloaded (503),
    or never runs as many choices (400)."""

    reason: str
    message: str
    retry_after: float
    quota: bool = False


Decision = Admit | Hold | Refuse
