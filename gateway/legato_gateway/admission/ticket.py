"""What admission is asked, and what it answers. Pure: part of `admission`."""

from dataclasses import dataclass, field, replace

from legato_gateway.routing.filters import Matches, Need

QUEUE_FULL = "queue_full"
DEADLINE = "deadline_unmeetable"
TOO_LARGE = "too_large"
NO_WORKER = "no_worker"  # no worker of this fleet can ever take it
TOO_MANY_CHOICES = "too_many_choices"
QUOTA = "tenant_quota"


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

    def while_held(self) -> "Ticket":
        """Returns a copy that needs room for only one output token. Workers that come later may have shorter limits
        than the known ones, and the need is decided again when the request starts."""
        return replace(self, need=replace(self.need, growth=min(self.need.growth, 1)))


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
