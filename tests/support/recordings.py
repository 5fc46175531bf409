"""Recordings that nobody made: rounds every 2 s, of the signals that a test gives."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from legato_operator.autoscaler.signals import Signals
from legato_simulator.replay import signal_round
from legato_simulator.replay.signal_round import SignalRound

BEGIN = 1_800_000_000.0


def recorded_round(at: float, signals: Signals, prefill: int = 1, decode: int = 1, **changes: Any) -> SignalRound:
    """A round of a service with pools of these sizes, `at` seconds from the beginning."""
    sizes = {"prefill": prefill, "decode": decode}
    fields = {"service": "chat", "desired": sizes, "targets": sizes, "mode": "Managed"}
    return SignalRound(BEGIN + at, "prod", **{**fields, "signals": signals, **changes})


def write(path: Path, rounds: Iterable[SignalRound]) -> Path:
    path.write_bytes(b"".join(signal_round.encode(each) + b"\n" for each in rounds))
    return path
