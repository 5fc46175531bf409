"""Backfill: requests that may start before one that waits for room. Pure: part of `admission`.

Backfill in the manner of the EASY scheduler (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995): the first request
without room has a reservation, and later ones may start before it if that does not starve it. The end of running
sequences is unknown, so the reservation is bounded in time: until then, every request that fits may pass. After that,
freed room is offered to the reservation first, and all that passed may together take at most half of the cache that a
worker has in addition to its need. So it starts at the latest when all that ran before it have ended.

Passing keeps fair shares: a request cannot pass if its tenant was served more, or its priority level is further ahead
of its share, than if the first one had started when it was due.
"""

from dataclasses import dataclass, field

from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.ticket import Ticket


@dataclass(slots=True)
class Reservation:
    """The reservation of `ticket`, which was due and had no room. Requests that fit may pass until `until`."""

    ticket: Ticket
    until: float
    passed: dict[str, int] = field(default_factory=dict)  # id → tokens so far, of running ones that passed

    def leaves_room(self, ticket: Ticket, capacity: Capacity, now: float) -> bool:
        """True if `ticket` may pass without making the first one wait too long."""
        if now < self.until:
            return True
        if capacity.lacks_time(self.ticket.need, self.ticket.matches):
            return False  # only the end of sequences shortens steps
        return sum(self.passed.values()) + ticket.need.tokens <= capacity.spare_tokens(self.ticket.need) // 2

    def pass_by(self, ticket: Ticket) -> None:
        """Records that `ticket` starts."""
        if ticket is not self.ticket:
            self.passed[ticket.id] = ticket.need.tokens

    def progress(self, id: str, tokens: int) -> None:
        """Counts `tokens` more output of a started request."""
        if id in self.passed:
            self.passed[id] += tokens
