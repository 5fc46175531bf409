"""Transports for hand-offs on this machine, for `legato doctor`.

Shows missing requirements, the speed, and the transport that a worker would choose after the same self-test.
"""

from collections.abc import Callable, Mapping, Sequence

from legato_cli.machine.loopback import Loopback
from legato_engine.transfer import choice
from legato_engine.transfer.link import LinkError

Measure = Callable[[str], Loopback]
Check = Callable[[str], None]  # raises LinkError


class Handoffs:
    """Measures and checks each transport once."""

    def __init__(
        self, lacking: Mapping[str, Sequence[str]], measure: Measure, check: Check, *, on_device: bool
    ) -> None:
        """`lacking` has the missing requirements by transport; `on_device` is True if workers compute on a GPU."""
        self._lacking = lacking
        self._on_device = on_device
        self._check = check
        self.measured = {name: _measured(name, missing, measure) for name, missing in lacking.items()}

    @property
    def usable(self) -> bool:
        return any(isinstance(outcome, Loopback) for outcome in self.measured.values())

    def lines(self) -> list[str]:
        return [*(_line(name, outcome) for name, outcome in self.measured.items()), self._chosen()]

    def _chosen(self) -> str:
        """Returns the choice of `transport: Auto`, and the reason if it is not the fastest."""
        missing = self._lacking["RDMA"]
        names = choice.candidates("Auto", on_device=self._on_device, required=False, lacking=missing)
        try:
            made = choice.first_usable(names, self._use)
        except LinkError as error:
            return f"{'Auto':<14} not usable: {error}"
        return f"{'Auto':<14} {made.opened}" + (f", as {made.reason}" if made.reason else "; it passed the self-test")

    def _use(self, name: str) -> str:
        """Runs the self-test of a transport. Raises LinkError."""
        if missing := self._lacking.get(name, ()):
            raise LinkError("; ".join(missing))
        if name == "TCP":
            return name
        self._check(name)
        return name


def _measured(name: str, missing: Sequence[str], measure: Measure) -> Loopback | str:
    """Returns the speed of a transport, or the reason why it is not usable."""
    if missing:
        return "; ".join(missing)
    try:
        return measure(name)
    except LinkError as error:
        return str(error)


def _line(name: str, outcome: Loopback | str) -> str:
    if isinstance(outcome, str):
        return f"{name:<14} not usable: {outcome}"
    latency, bandwidth = outcome.latency * 1e6, outcome.bandwidth / 1e9
    return f"{name:<14} usable; {latency:.0f} µs a message, {bandwidth:.1f} GB/s between two processes here"
