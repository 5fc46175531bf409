"""The result of a replay as text and as JSON."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from legato_simulator.replay.replay import Moment, Replay
from legato_simulator.replay.tally import PoolReplay, Stretch
from legato_simulator.report import table

MOST_STRETCHES = 20  # printed; JSON has all
LIMITS = (
    "Signals belong to the recorded sizes. Requests that other sizes would have queued, refused or delayed are "
    "unknown, so there is no attainment. A recorded backlog does not shrink faster with more workers, so they seem "
    "needed for longer than they would be; a backlog that fewer workers would have caused does not appear.",
    "Load is the sum over all workers; rates, KV capacity and start times are taken from one recorded worker. They "
    "hold for any number of workers, but only for workers like the recorded ones. Backlog and DecodeRoom count the "
    "workers that were ready then.",
    "Worker-hours count desired sizes, without starting and draining workers. At the beginning, and after a gap, pools "
    "keep their sizes for scaling.scaleDownStabilization, as after a restart of the operator.",
)


def text(replay: Replay) -> str:
    """Returns everything, with a shortened timeline."""
    parts = [
        about(replay),
        _pools(replay),
        _reasons(replay),
        _differences(replay),
        _timeline(replay),
        "\n".join(LIMITS),
    ]
    return "\n\n".join(part for part in parts if part)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def about(replay: Replay) -> str:
    """Returns a sentence about the recording."""
    begin = datetime.datetime.fromtimestamp(replay.begin, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    described = f"{replay.service}: {_counted(replay.rounds, 'round')} in {table.clock(replay.seconds)}, from {begin}"
    if replay.gaps:
        longest = max(until - since for since, until in replay.gaps)
        described += f"; {_counted(len(replay.gaps), 'gap')}, the longest {table.clock(longest)}, not counted"
    if replay.blind:
        described += f"; in {_counted(replay.blind, 'round')} traffic was not known"
    return described


def _pools(replay: Replay) -> str:
    head = ["pool", "", "worker-hours", "most workers", "reversals/h", "other size"]
    rows = [row for name, pool in replay.pools.items() for row in _pool(name, pool)]
    hours = f"GPU-hours: {replay.recorded_gpu_hours:.2f} recorded, {replay.gpu_hours:.2f} replayed"
    return f"{table.markdown([head, *rows])}\n\n{hours}"


def _pool(name: str, pool: PoolReplay) -> list[list[str]]:
    recorded = [f"{pool.recorded_hours:.2f}", str(pool.recorded_most), f"{pool.recorded_reversals:.1f}", ""]
    replayed = [f"{pool.hours:.2f}", str(pool.most), f"{pool.reversals:.1f}", f"{pool.differs:.1%} of the time"]
    return [[name, "recorded", *recorded], [name, "replayed", *replayed]]


def _reasons(replay: Replay) -> str:
    rows = [
        [name, reason, f"{share:.1%}"] for name, pool in replay.pools.items() for reason, share in pool.reasons.items()
    ]
    return table.markdown([["pool", "why the size is what it is", "time"], *rows])


def _differences(replay: Replay) -> str:
    if not replay.differences:
        return "No size differs from the recorded one."
    largest = sorted(replay.differences, key=lambda each: (-abs(each.worker_hours), each.since))[:MOST_STRETCHES]
    head = ["from", "until", "pool", "recorded", "replayed", "worker-hours", "why replayed", "why recorded"]
    rows = [_stretch(each) for each in sorted(largest, key=lambda each: (each.since, each.pool))]
    count = len(replay.differences)
    left = f"The {len(largest)} largest of {count} differences:" if count > len(largest) else f"Differences: {count}"
    return f"{left}\n\n{table.markdown([head, *rows])}"


def _stretch(each: Stretch) -> list[str]:
    sizes = [str(each.recorded), str(each.replayed), f"{each.worker_hours:+.2f}"]
    times = [table.clock(each.since), table.clock(each.until)]
    return [*times, each.pool, *sizes, each.reason, each.recorded_reason or "not reported"]


def _timeline(replay: Replay) -> str:
    pools = list(replay.pools)
    head = [*table.LOAD, *(f"{pool} recorded/replayed" for pool in pools)]
    return table.markdown([head, *(_moment(each, pools) for each in table.spread(replay.timeline))])


def _moment(each: Moment, pools: Sequence[str]) -> list[str]:
    sizes = [f"{each.recorded.desired[pool]}/{each.replayed[pool]}" for pool in pools]
    return [*table.load(each.recorded), *sizes]


def as_json(replay: Replay) -> dict[str, Any]:
    """Returns the whole result. Deterministic for a recording and a manifest."""
    result = dataclasses.asdict(replay)
    return {**result, "timeline": [_as_json(moment) for moment in replay.timeline], "limits": LIMITS}


def _as_json(moment: Moment) -> dict[str, Any]:
    sample = dataclasses.asdict(moment.recorded)
    sample.pop("attainment_so_far")
    return {**sample, "recorded": moment.recorded.desired, "replayed": moment.replayed, "reasons": moment.reasons}
