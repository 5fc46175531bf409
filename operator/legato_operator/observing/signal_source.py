"""Who knows what the autoscaler decides from."""

from typing import Protocol

from legato_operator.autoscaler.signals import Signals
from legato_operator.observing.observed import Observed


class SignalSource(Protocol):
    """Tells the signals of services."""

    async def signals(self, observed: Observed) -> Signals:
        """Of the service that was observed, now. What could not be asked is None there; nothing is raised for it."""
        ...

    def forget(self, uid: str) -> None:
        """A service has ended, or is not scaled any more."""
        ...
