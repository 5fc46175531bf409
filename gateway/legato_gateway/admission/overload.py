"""Refusals of requests that would be late, and the times at which their clients should retry. Pure: no I/O.

Under overload, a queue only makes every request late. So requests are refused while their expected wait takes more than
`HEADROOM` of the time that the objective leaves: those that are admitted meet it, and workers are still never idle.
"""

from math import exp

from legato_gateway.admission.capacity import Capacity
from legato_gateway.admission.ticket import LATE, Refuse, Ticket
from legato_gateway.routing.scorers import Objectives

HEADROOM = 0.5  # the rest is for errors of estimates, and for requests of other gateways
FORGET = 30.0  # seconds after which an earlier pace hardly counts
LONGEST_RETRY = 60.0  # seconds: OpenAI's and Anthropic's clients ignore a longer time


def longest_wait(ttft: float, own: float) -> float:
    """Returns the longest wait of a prompt that takes `own` seconds itself.

    One that misses the objective even without a wait is treated like a short one, so that it is not starved.
    """
    return HEADROOM * (ttft - own if own < ttft else ttft)


class QueuePace:
    """The time between two starts of queued requests, whatever they wait for: prompts, decode room or other gateways.

    It is measured while requests are queued, and recent starts weigh more. Without a queue, it is forgotten.
    """

    def __init__(self) -> None:
        self._seconds = self._starts = self._at = 0.0

    def advance(self, queued: bool, now: float) -> None:
        """Counts the time since the last call, in which requests were `queued` for workers or not."""
        passed, self._at = max(0.0, now - self._at), now
        fade = exp(-passed / FORGET)
        self._seconds, self._starts = self._seconds * fade + queued * passed, self._starts * fade

    def count_start(self) -> None:
        """Counts the start of a queued request."""
        self._starts += 1

    def wait(self, requests: float) -> float:
        """Returns the expected seconds until `requests` queued ones have started."""
        return requests * self._seconds / (self._starts + 1)  # one start is due: without any, the wait is at least this


class RetryTimes:
    """Spreads the retries of refused clients: each gets the time at which the work refused before it would be done.

    So clients that retry return at the rate of the service, instead of all together.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def after(self, least: float, work: float, now: float) -> float:
        """Returns the seconds, at least `least`, after which to retry a request that takes the fleet `work` seconds."""
        at = max(self._next, now + least)
        if at > now + max(LONGEST_RETRY, least):
            at = now + least  # more than they can wait for: begin anew
        self._next = at + work
        return at - now


class OverloadGuard:
    """Refuses requests that would miss the objective for the first token; without objectives, none."""

    def __init__(self, objectives: Objectives | None) -> None:
        self._objectives = objectives
        self.pace = QueuePace()
        self.retries = RetryTimes()

    def check(self, ticket: Ticket, capacity: Capacity, queued: int, cost: float, now: float) -> Refuse | None:
        """Refuses `ticket` if it would be late after `queued` requests with this `cost`, which start before it."""
        if self._objectives is None:
            return None
        need = ticket.need
        wait, own = capacity.prompt_wait(cost, ticket.uncached), capacity.own_seconds(need, ticket.uncached)
        if queued or not capacity.fits(need, ticket.uncached, ticket.matches):
            if capacity.obstacle(need, ticket.matches) == "no_worker":
                return None  # it waits for workers that start
            wait = max(wait, self.pace.wait(queued + 1) + capacity.prompt_wait(0, ticket.uncached))
        over = need.waited + wait - longest_wait(self._objectives.ttft, own)
        if over <= 0:
            return None
        text = f"the first token is about {wait + own:.1f} s away, and the objective is {self._objectives.ttft:g} s"
        return Refuse(LATE, text, self.retries.after(over, max(own, self.pace.wait(1)), now))
