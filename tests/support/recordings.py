"""Recordings that nobody made: rounds every 2 s, of the signals that a test gives."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from legato_cli.local.operations import LocalOperations
from legato_cli.recording import signal_round
from legato_cli.recording.reader import RoundReader
from legato_cli.recording.signal_round import SignalRound
from legato_cli.services.events import RecentEvents
from legato_cli.services.log_lines import LogLines
from legato_operator.autoscaler.signals import Signals
from legato_operator.clock import SystemClock
from legato_operator.cluster import Cluster, Ref
from legato_operator.observing.observe import Gateways
from legato_protocol.demand import DemandReport

BEGIN = 1_800_000_000.0


def recorded_round(at: float, signals: Signals, prefill: int = 1, decode: int = 1, **changes: Any) -> SignalRound:
    """At so many seconds from the beginning, of a service with pools of these sizes."""
    sizes = {"prefill": prefill, "decode": decode}
    fields = {"service": "chat", "desired": sizes, "targets": sizes, "mode": "Managed"}
    return SignalRound(BEGIN + at, "prod", **{**fields, "signals": signals, **changes})


def write(path: Path, rounds: Iterable[SignalRound]) -> Path:
    """A recording of them."""
    path.write_bytes(b"".join(signal_round.encode(each) + b"\n" for each in rounds))
    return path


class ScriptedGateways:
    """Tell what they are given, whoever asks; None is silence."""

    def __init__(self, report: DemandReport | None = None) -> None:
        self.report_given = report
        self.asked: list[str] = []

    async def report(self, address: str, tokens: Sequence[str], tls: object = None) -> DemandReport | None:
        self.asked.append(address)
        return self.report_given


def operations(store: Cluster, ref: Ref, gateways: Gateways | None = None) -> LocalOperations:
    """Of a `legato up` whose gateways are these."""
    clock = SystemClock()
    rounds = RoundReader(store, ref, gateways or ScriptedGateways(), clock)
    return LocalOperations(store, ref, clock, rounds, RecentEvents(clock), LogLines())
