"""The interface of sources of the autoscaler's signals."""

from typing import Protocol

from legato_operator.autoscaler.signals import Signals
from legato_operator.observing.observed import Observed


class SignalSource(Protocol):
    """A source of services' signals."""

    async def signals(self, observed: Observed) -> Signals:
        """Returns the current signals of an observed service. Unknown signals are None; no error is raised for them."""
        ...

    def forget(self, uid: str) -> None:
        """Forgets a service that has ended or is no longer scaled."""
        ...
