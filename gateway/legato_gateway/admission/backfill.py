"""Who may start before a request that waits for room. Pure: part of `admission`.

Backfill in the manner of the EASY scheduler (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995): the first request
without room has a reservation, and those behind it may start before it where that does not keep it waiting for ever.
When running sequences end is not known, so the reservation is bounded in time: until then, whoever fits may pass. After
that it is the first to be given what frees up, in whatever order others come, and those who passed may together have no
more of the cache than half of what a worker has beyond its need. So it starts when those that ran before have ended, at
the latest.

Passing is no way around fair shares: nobody passes whose tenant was served more, or whose level of priority is ahead of
its share by more, than if the first one had started when its turn came.
"""

from dataclasses import dataclass, field

from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.ticket import Ticket


@dataclass(slots=True)
class Reservation:
    """Of `ticket`, which found no room at its turn. Whoever fits may pass `until` then."""

    ticket: Ticket
    until: float
    passed: dict[str, int] = field(default_factory=dict)  # id → tokens so far, of those that passed and run

    def leaves_room(self, ticket: Ticket, capacity: Capacity, now: float) -> bool:
        """Whether `ticket` may pass without keeping the first one waiting for too long."""
        if now < self.until:
            return True
        return sum(self.passed.values()) + ticket.need.tokens <= capacity.spare_tokens(self.ticket.need) // 2

    def pass_by(self, ticket: Ticket) -> None:
        """It starts."""
        if ticket is not self.ticket:
            self.passed[ticket.id] = ticket.need.tokens

    def progress(self, id: str, tokens: int) -> None:
        """One that was started has made `tokens` more."""
        if id in self.passed:
            self.passed[id] += tokens
