"""Times of the local cluster, in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalSettings:
    announce_interval: float = 0.05  # between checks for a process's announced ports
    announce_timeout: float = 120.0  # a process that has announced no ports by then is killed
    probe_interval_starting: float = 0.2
    probe_interval: float = 2.0
    probe_timeout: float = 3.0
    liveness_misses: int = 4  # in a row, before a process is killed: compute may occasionally starve a probe
    backoff_first: float = 0.2
    backoff_longest: float = 30.0
    backoff_reset_after: float = 10.0
