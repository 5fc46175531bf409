"""An open-loop load whose rate steps up and down, and the autoscaler's changes meanwhile."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from legato_cli.bench.client import Record
from legato_cli.bench.load import LoadRun
from legato_cli.errors import ServiceUnavailable

PAUSE = 1.0  # seconds between two polls of the autoscaler
Scaling = Mapping[str, Any]  # `status.scaling`


@dataclass(frozen=True, slots=True)
class BurstPhase:
    """Poisson arrivals at `rate` requests per second, for `seconds`."""

    rate: float
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.rate:g} req/s for {self.seconds:g} s"


def arrivals(phases: Sequence[BurstPhase], seed: int) -> list[tuple[int, float]]:
    """Returns, in order of arrival, each request's phase number and its arrival in seconds after the start."""
    rng, begins, requests = random.Random(seed), 0.0, []
    for number, phase in enumerate(phases):
        at = begins + rng.expovariate(phase.rate)
        while at < begins + phase.seconds:
            requests.append((number, at))
            at += rng.expovariate(phase.rate)
        begins += phase.seconds
    return requests


def by_phase(
    records: Sequence[Record], sent: Sequence[tuple[int, float]], phases: Sequence[BurstPhase]
) -> list[LoadRun]:
    """Groups the records by phase; `records` are in the order of `sent`.

    A request belongs to the phase in which it arrived, even if it was answered later. A phase's rates are per second
    of its duration.
    """
    runs = [LoadRun([], phase.seconds) for phase in phases]
    for record, (number, _) in zip(records, sent, strict=True):
        runs[number].records.append(record)
    return runs


@dataclass(slots=True)
class ScalingWatch:
    """Records the autoscaler's changes while a load runs. `ask` raises ServiceUnavailable if there is no status."""

    ask: Callable[[], Scaling]
    began: float  # Unix seconds
    changes: list[Mapping[str, Any]] = field(default_factory=list)
    unknown: str = ""  # reason why the status cannot be read
    _before: list[Mapping[str, Any]] = field(default_factory=list)

    async def run(self) -> None:
        """Polls until it is cancelled."""
        await self.poll(first=True)
        while True:
            await asyncio.sleep(PAUSE)
            await self.poll()

    async def poll(self, first: bool = False) -> None:
        """Adds the changes since the last poll (a status keeps the last 20). The first poll only skips older ones."""
        try:
            records = list((await asyncio.to_thread(self.ask)).get("records", ()))
        except ServiceUnavailable as error:
            self.unknown = str(error)
            return
        self.unknown = ""
        if first:
            self._before = records
        self.changes += [each for each in records if each not in self._before and each not in self.changes]


def lines(watch: ScalingWatch, phases: Sequence[BurstPhase]) -> Iterator[str]:
    """Yields the autoscaler's changes by phase, with their reasons and arithmetic."""
    if watch.unknown and not watch.changes:
        yield f"the autoscaler's changes cannot be read: {watch.unknown}"
        return
    begins, changes = 0.0, sorted(watch.changes, key=lambda change: _after(watch, change))
    for number, phase in enumerate(phases):
        ends = begins + phase.seconds if number + 1 < len(phases) else float("inf")
        yield f"{phase.name}:"
        within = [change for change in changes if begins <= max(0.0, _after(watch, change)) < ends]
        for change in within:
            yield from _change(change, _after(watch, change))
        if not within:
            yield "  no change"
        begins = ends


def _change(change: Mapping[str, Any], after: float) -> Iterator[str]:
    capped = f", capped by {change['cappedBy']}" if change["cappedBy"] else ""
    size = f"{change['pool']} {change['current']} -> {change['recommended']}"
    yield f"  +{after:.0f} s  {size}  {change['reason']}: {change['needed']} needed{capped}"
    for term in change["terms"]:
        if term["reason"] == change["reason"] and term["numbers"]:
            yield f"    {term['workers']:.2f} = {term['equation']}"
            yield f"    {', '.join(f'{key} {value:g}' for key, value in term['numbers'].items())}"


def _after(watch: ScalingWatch, change: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(change["time"]).timestamp() - watch.began


def changes_as_json(watch: ScalingWatch) -> list[dict[str, Any]]:
    return [{**change, "seconds": _after(watch, change)} for change in watch.changes]


class Watch(Protocol):
    """A source of records that is polled while a load runs."""

    async def run(self) -> None:
        """Polls until it is cancelled."""

    async def poll(self) -> None:
        """Polls once."""


async def watched(watch: Watch, load: Awaitable[LoadRun]) -> LoadRun:
    """Returns the load's records. Polls while it runs, and once more at its end."""
    watching = asyncio.create_task(watch.run())
    try:
        return await load
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await watch.poll()
