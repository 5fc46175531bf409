"""Handing running sequences on from workers that drain."""

import asyncio

from legato_gateway.metrics import Metrics
from legato_gateway.relay.dispatch import Dispatcher
from legato_gateway.relay.leg import Leg
from legato_gateway.relay.legs import Legs

FIRST_PAUSE = 0.05  # seconds, doubled after every failed move
MOST_PAUSE = 1.0


class Moves:
    """A move begins with a new attempt at the receiver; until its first sign of life the old attempt goes on."""

    def __init__(self, legs: Legs, dispatcher: Dispatcher, metrics: Metrics, most: int) -> None:
        self._legs = legs
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._most = most

    def consider(self, leg: Leg, worker: str) -> None:
        """`worker` drains: hands `leg` on, if it runs there and somebody can take it; each of several choices alone."""
        if leg.placement is None or leg.placement.decode != worker or not leg.started:
            return
        for part in self._legs.split(leg) if len(leg.choices) > 1 else [leg]:
            if self._movable(part):
                part.move = self._dispatcher.move(part)
                self._legs.note(part)

    def completed(self, leg: Leg) -> None:
        """The receiver has it: the sender matters no more."""
        before = leg.workers
        leg.moved()
        self._legs.forget(leg, before - leg.workers)
        record = leg.generation.route
        assert leg.placement is not None
        record.decode, record.attempt = leg.placement.decode, max(record.attempt, leg.placement.attempt)
        self._metrics.moved()

    def failed(self, leg: Leg) -> None:
        """The receiver does not get it."""
        leg.moves_failed += 1
        pause = min(MOST_PAUSE, FIRST_PAUSE * 2.0 ** min(leg.moves_failed, 10))
        leg.move_after = asyncio.get_running_loop().time() + pause
        self.clear(leg)

    def clear(self, leg: Leg) -> None:
        """It goes on at its old place under its old attempt."""
        move = leg.move
        assert move is not None
        self._dispatcher.cancel_move(leg, move)
        leg.move = None
        self._legs.forget(leg, move.workers - leg.workers)

    def _movable(self, leg: Leg) -> bool:
        if leg.move is not None or leg.moves_failed >= self._most:
            return False
        return asyncio.get_running_loop().time() >= leg.move_after
