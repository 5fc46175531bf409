"""Parts and speeds of a workload: its busiest minutes, and the same requests arriving faster."""

import bisect
import dataclasses
from dataclasses import dataclass
from itertools import accumulate

from legato_simulator.workload.workload import Arrival, Workload

WARM_UP = 0.2  # of the window, before it: prefix caches and batches fill
MOST_REQUESTS = 3000  # in the window that counts: it ends earlier if the trace is denser
FEW = 100  # requests, below which a plan is rough
SHORT = 10  # multiple of `slo.ttft`, below which queues hide much of a lasting rate's needs


class UnusableTrace(ValueError):
    """Not a workload that a plan can be made for. The text has the reason."""


@dataclass(frozen=True)
class PlannedLoad:
    """The part of a workload that is simulated. Requests before `since` fill caches and do not count."""

    workload: Workload
    since: float  # seconds
    whole: Workload

    @property
    def requests(self) -> int:
        """Number of requests that count."""
        return sum(arrival.at >= self.since for arrival in self.workload.arrivals)

    @property
    def seconds(self) -> float:
        """Seconds from `since` to the last arrival."""
        return self.workload.arrivals[-1].at - self.since

    @property
    def rate(self) -> float:
        """Requests per second that count."""
        return self.requests / self.seconds

    def at(self, load: float) -> "PlannedLoad":
        """Returns the same requests with a rate that is `load` times as high."""
        arrivals = tuple(dataclasses.replace(each, at=each.at / load) for each in self.workload.arrivals)
        return PlannedLoad(dataclasses.replace(self.workload, arrivals=arrivals), self.since / load, self.whole)


def busiest(workload: Workload, seconds: float) -> PlannedLoad:
    """Returns the window of a workload with the most tokens of prompts and answers. Raises UnusableTrace."""
    _check(workload)
    arrivals = workload.arrivals
    if arrivals[-1].at <= seconds and len(arrivals) <= MOST_REQUESTS:
        return PlannedLoad(workload, 0.0, workload)
    times = [arrival.at for arrival in arrivals]
    sums = [0, *accumulate(arrival.prompt + arrival.output for arrival in arrivals)]
    ends = [min(i + MOST_REQUESTS, bisect.bisect_right(times, at + seconds)) for i, at in enumerate(times)]
    first = max(range(len(arrivals)), key=lambda i: (sums[ends[i]] - sums[i], -i))
    begin = max(0.0, times[first] - WARM_UP * seconds)
    part = arrivals[bisect.bisect_left(times, begin) : ends[first]]
    if part[-1].at == times[first]:
        raise UnusableTrace(
            f"the busiest {seconds:g} s of {workload.name} have requests at a single time, so no rate; a longer "
            "--window may have one"
        )
    shifted = tuple(dataclasses.replace(arrival, at=arrival.at - begin) for arrival in part)
    return PlannedLoad(dataclasses.replace(workload, arrivals=shifted), times[first] - begin, workload)


def _check(workload: Workload) -> None:
    arrivals: tuple[Arrival, ...] = workload.arrivals
    if len(arrivals) < 2 or not arrivals[-1].at:
        count = "1 request" if len(arrivals) == 1 else f"{len(arrivals)} requests at the same time"
        raise UnusableTrace(f"{workload.name} has {count}, and thus no rate; record some minutes of traffic")
    if max(arrival.output for arrival in arrivals) <= 1:
        raise UnusableTrace(
            f"{workload.name} has no outputs: no answer has more than one token, so nothing decodes; add "
            "output_length (GeneratedTokens in CSV)"
        )
