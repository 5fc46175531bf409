"""What can carry hand-offs on this machine, for `legato doctor`: what is missing, how fast it is, and what a worker
would choose after the same self-test.
"""

from collections.abc import Callable, Mapping, Sequence

from legato_cli.loopback import Loopback
from legato_engine.transfer import choice
from legato_engine.transfer.link import LinkError

Measure = Callable[[str], Loopback]
Check = Callable[[str], None]  # raises LinkError


class Handoffs:
    """`usable` and the lines follow from what is measured and tried, each once."""

    def __init__(
        self, lacking: Mapping[str, Sequence[str]], measure: Measure, check: Check, *, on_device: bool
    ) -> None:
        """`lacking` is what each transport lacks; `on_device` whether workers here compute on a GPU."""
        self._lacking = lacking
        self._on_device = on_device
        self._check = check
        self.measured = {name: _measured(name, missing, measure) for name, missing in lacking.items()}

    @property
    def usable(self) -> bool:
        return any(isinstance(found, Loopback) for found in self.measured.values())

    def lines(self) -> list[str]:
        return [*(_line(name, found) for name, found in self.measured.items()), self._chosen()]

    def _chosen(self) -> str:
        """What `transport: Auto` is here, and why nothing better."""
        missing = self._lacking["RDMA"]
        names = choice.candidates("Auto", on_device=self._on_device, required=False, lacking=missing)
        try:
            made = choice.first_usable(names, self._use)
        except LinkError as error:
            return f"{'Auto':<14} not usable: {error}"
        return f"{'Auto':<14} {made.opened}" + (f", as {made.reason}" if made.reason else "; it passed the self-test")

    def _use(self, name: str) -> str:
        """Raises LinkError."""
        if missing := self._lacking.get(name, ()):
            raise LinkError("; ".join(missing))
        if name == "TCP":
            return name
        self._check(name)
        return name


def _measured(name: str, missing: Sequence[str], measure: Measure) -> Loopback | str:
    """How fast it is, or why it is not usable."""
    if missing:
        return "; ".join(missing)
    try:
        return measure(name)
    except LinkError as error:
        return str(error)


def _line(name: str, found: Loopback | str) -> str:
    if isinstance(found, str):
        return f"{name:<14} not usable: {found}"
    latency, bandwidth = found.latency * 1e6, found.bandwidth / 1e9
    return f"{name:<14} usable; {latency:.0f} µs a message, {bandwidth:.1f} GB/s between two processes here"
