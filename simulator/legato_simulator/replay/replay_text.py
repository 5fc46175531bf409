"""What a replay came to, as text and as JSON."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from legato_simulator.replay.replay import Moment, Replay
from legato_simulator.replay.tally import PoolReplay, Stretch
from legato_simulator.report import table

MOST_STRETCHES = 20  # that are printed; JSON has all
LIMITS = (
    "Signals are those of the recorded sizes. What would have queued, been refused or been late with other sizes is "
    "not known, so there is no attainment. A recorded backlog does not shrink faster with more workers, so they seem "
    "needed for longer than they would be; a backlog that fewer would have caused is not seen.",
    "Load is taken as the sum over all workers; rates, KV capacity and start times as those of one recorded worker. "
    "They hold for any number of workers, but only for workers like the recorded ones. Backlog and DecodeRoom count "
    "the workers that were ready then.",
    "Worker-hours are those of desired sizes; starting and draining workers are not added. At the beginning, and after "
    "a gap, pools keep their sizes for scaling.scaleDownStabilization, as after a restart of the operator.",
)


def text(found: Replay) -> str:
    """Everything but the timeline's every moment."""
    parts = [about(found), _pools(found), _reasons(found), _differences(found), _timeline(found), "\n".join(LIMITS)]
    return "\n\n".join(part for part in parts if part)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def about(found: Replay) -> str:
    """What was recorded."""
    begin = datetime.datetime.fromtimestamp(found.begin, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    told = f"{found.service}: {_counted(found.rounds, 'round')} in {table.clock(found.seconds)}, from {begin}"
    if found.gaps:
        longest = max(until - since for since, until in found.gaps)
        told += f"; {_counted(len(found.gaps), 'gap')}, the longest {table.clock(longest)}, not counted"
    if found.blind:
        told += f"; in {_counted(found.blind, 'round')} traffic was not known"
    return told


def _pools(found: Replay) -> str:
    head = ["pool", "", "worker-hours", "most workers", "reversals/h", "other size"]
    rows = [row for name, pool in found.pools.items() for row in _pool(name, pool)]
    told = f"GPU-hours: {found.recorded_gpu_hours:.2f} recorded, {found.gpu_hours:.2f} replayed"
    return f"{table.markdown([head, *rows])}\n\n{told}"


def _pool(name: str, pool: PoolReplay) -> list[list[str]]:
    recorded = [f"{pool.recorded_hours:.2f}", str(pool.recorded_most), f"{pool.recorded_reversals:.1f}", ""]
    replayed = [f"{pool.hours:.2f}", str(pool.most), f"{pool.reversals:.1f}", f"{pool.differs:.1%} of the time"]
    return [[name, "recorded", *recorded], [name, "replayed", *replayed]]


def _reasons(found: Replay) -> str:
    rows = [
        [name, reason, f"{share:.1%}"] for name, pool in found.pools.items() for reason, share in pool.reasons.items()
    ]
    return table.markdown([["pool", "why the size is what it is", "time"], *rows])


def _differences(found: Replay) -> str:
    if not found.differences:
        return "No size differs from the recorded one."
    largest = sorted(found.differences, key=lambda each: (-abs(each.worker_hours), each.since))[:MOST_STRETCHES]
    head = ["from", "until", "pool", "recorded", "replayed", "worker-hours", "why replayed", "why recorded"]
    rows = [_stretch(each) for each in sorted(largest, key=lambda each: (each.since, each.pool))]
    count = len(found.differences)
    left = f"The {len(largest)} largest of {count} differences:" if count > len(largest) else f"Differences: {count}"
    return f"{left}\n\n{table.markdown([head, *rows])}"


def _stretch(each: Stretch) -> list[str]:
    sizes = [str(each.recorded), str(each.replayed), f"{each.worker_hours:+.2f}"]
    times = [table.clock(each.since), table.clock(each.until)]
    return [*times, each.pool, *sizes, each.reason, each.recorded_reason or "not told"]


def _timeline(found: Replay) -> str:
    pools = list(found.pools)
    head = ["time", "requests/s", "tokens/s", "queue tokens", "KV", *(f"{pool} recorded/replayed" for pool in pools)]
    return table.markdown([head, *(_moment(each, pools) for each in table.spread(found.timeline))])


def _moment(each: Moment, pools: Sequence[str]) -> list[str]:
    sample = each.recorded
    return [
        table.clock(sample.at),
        f"{sample.arrivals_per_second:.2f}",
        f"{sample.tokens_per_second:.0f}",
        str(sample.queue_tokens),
        f"{sample.kv_usage:.0%}",
        *(f"{sample.wish[pool]}/{each.replayed[pool]}" for pool in pools),
    ]


def as_json(found: Replay) -> dict[str, Any]:
    """All of it. Same recording and manifest, same bytes."""
    told = dataclasses.asdict(found)
    return {**told, "timeline": [_as_json(moment) for moment in found.timeline], "limits": LIMITS}


def _as_json(moment: Moment) -> dict[str, Any]:
    sample = dataclasses.asdict(moment.recorded)
    sample.pop("attainment_so_far")
    return {**sample, "recorded": sample.pop("wish"), "replayed": moment.replayed, "reasons": moment.reasons}
