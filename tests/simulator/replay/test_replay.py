"""A recording is read whole and in order, or not at all; its replay decides as the operator did, and says where another
manifest would have differed."""

import dataclasses

import pytest
from known_signals import NO_TRAFFIC, arriving, changed, decoder, prefiller, spec
from recordings import BEGIN, recorded_round, write

from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Blocks, OutputLengths, Signals, Traffic
from legato_simulator.replay import recording, signal_round
from legato_simulator.replay.recording import RecordingError
from legato_simulator.replay.replay import UnusableReplay, replay

QUIET = Signals((prefiller(), decoder()), NO_TRAFFIC)
BUSY = Signals((prefiller(queue_tokens=160_000), decoder()), arriving(420, 2000))  # prefill needs 4
BLIND = Signals((prefiller(), decoder()), None)


def _quiet_then_busy(after=10, end=20, prefill=4):
    before = [recorded_round(2 * i, QUIET) for i in range(after)]
    return before + [recorded_round(2 * i, BUSY, prefill=1 if i == after else prefill) for i in range(after, end)]


def test_the_same_manifest_gives_the_recorded_sizes():
    """`desired` of a round was decided in the round before."""
    known, sizes, windows = [], {"prefill": 1, "decode": 1}, {}
    for i in range(200):
        signals = BUSY if 50 <= i < 60 else QUIET
        known.append(recorded_round(2 * i, signals, **sizes))
        decision = decide(signals, windows, SHORT, sizes, BEGIN + 2 * i)
        windows, sizes = decision.windows, {pool: made.desired for pool, made in decision.pools.items()}
    found = replay(known, SHORT)
    assert {each.until - each.since for each in found.differences} == {2.0}
    assert found.pools["prefill"].most == found.pools["prefill"].recorded_most == 4
    assert found.pools["prefill"].hours == pytest.approx(found.pools["prefill"].recorded_hours)


SHORT = spec(scaling={"prefill": {"min": 1, "max": 10}, "scaleDownStabilization": "1m"})


def test_a_smaller_bound_is_listed_with_what_it_saves():
    capped = spec(scaling={"prefill": {"min": 1, "max": 2}})
    found = replay(_quiet_then_busy(), capped)
    prefill = found.pools["prefill"]
    assert (prefill.recorded_most, prefill.most) == (4, 2)
    assert prefill.hours == pytest.approx((10 * 2 * 1 + 9 * 2 * 2) / 3600)
    assert prefill.recorded_hours == pytest.approx((11 * 2 * 1 + 8 * 2 * 4) / 3600)
    last = found.differences[-1]
    assert (last.pool, last.since, last.until, last.recorded, last.replayed) == ("prefill", 22.0, 38.0, 4, 2)
    assert last.reason == "Backlog, capped by scaling.prefill.max"
    assert last.worker_hours == pytest.approx(-2 * 16 / 3600)
    assert prefill.differs == pytest.approx(18 / 38)


def test_the_budget_and_the_ratio_of_the_other_manifest_limit_it():
    prefill = replay(_quiet_then_busy(), spec(scaling={"maxPrefillPerDecode": 3})).pools["prefill"]
    assert prefill.most == 3
    assert "Backlog, capped by scaling.maxPrefillPerDecode" in prefill.reasons


def test_gpu_hours_are_those_of_the_manifests_workers():
    gpus = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    found = replay(_quiet_then_busy(), spec(decode=gpus))
    prefill, decode = found.pools["prefill"], found.pools["decode"]
    assert found.gpu_hours == pytest.approx(prefill.hours + 2 * decode.hours)
    assert found.recorded_gpu_hours == pytest.approx(prefill.recorded_hours + 2 * decode.recorded_hours)


def test_a_gap_does_not_count_and_no_difference_goes_on_through_it():
    rounds = _quiet_then_busy(0, 5, prefill=2)
    later = [dataclasses.replace(each, time=each.time + 1000) for each in rounds[1:]]
    found = replay(rounds + later, spec())
    assert found.gaps == ((8.0, 1002.0),)
    assert found.seconds == 8 + 6
    stretches = [(each.since, each.until) for each in found.differences if each.pool == "prefill"]
    assert stretches == [(0.0, 2.0), (2.0, 8.0), (1002.0, 1008.0)]


def test_a_round_without_traffic_keeps_the_replayed_sizes_and_is_counted():
    rounds = [recorded_round(2 * i, BLIND if i > 5 else BUSY, prefill=1) for i in range(1000)]
    found = replay(rounds, spec(scaling={"scaleDownStabilization": "1m"}))
    last = found.timeline[-1]
    assert (found.pools["prefill"].most, found.blind) == (4, 994)
    assert (last.replayed["prefill"], last.reasons["prefill"]) == (4, "MetricsMissing")


def test_kv_pressure_depends_on_the_recorded_size_of_blocks_and_not_on_the_manifests():
    waits = Traffic(60.0, (), 10.0, (), queued=10, queued_prompt_tokens=16_000, output=OutputLengths(500, 0))

    def timeline(recorded, given):
        full = changed(QUIET, "decode", blocks=Blocks(500, 0, 400, size=recorded), running=4)
        held = dataclasses.replace(full, traffic=waits)
        return replay([recorded_round(0, held)], spec(engine={"blockSize": given})).timeline

    assert timeline(16, 16) == timeline(16, 64)
    assert timeline(64, 16)[0].replayed["decode"] < timeline(16, 16)[0].replayed["decode"]


def test_every_change_is_recorded_with_its_terms():
    (change, *_) = replay(_quiet_then_busy(), spec()).changes
    assert (change["pool"], change["current"], change["recommended"], change["reason"]) == ("prefill", 1, 4, "Backlog")
    assert change["time"] == "2027-01-15T08:00:20Z"
    assert change["terms"][0]["numbers"]["fittingWork"] == 105


KNOWN = spec()
FIXED = KNOWN.model_copy(update={"scaling": KNOWN.scaling.model_copy(update={"mode": "Fixed"})})


@pytest.mark.parametrize(
    ("rounds", "given", "message"),
    [
        (1, spec(scaling={"prefill": {"max": 0}}), r"pools prefill and decode at 2027.* and the manifest decode"),
        (1, FIXED, "Fixed: there is nothing to decide"),
        (0, KNOWN, "no rounds"),
    ],
    ids=["other pools", "a manifest that decides nothing", "no rounds"],
)
def test_what_cannot_be_replayed_is_refused(rounds, given, message):
    with pytest.raises(UnusableReplay, match=message):
        replay(_quiet_then_busy()[:rounds], given)


def _rounds(*times, **changes):
    return [recorded_round(at, QUIET, **changes) for at in times]


def _read(*paths):
    return list(recording.rounds(paths))


def test_several_files_are_one_recording_without_its_blank_lines(tmp_path):
    first, second = write(tmp_path / "1", _rounds(0, 2)), write(tmp_path / "2", _rounds(4))
    first.write_bytes(b"\n" + first.read_bytes() + b"\n\n")
    assert _read(first, second) == _rounds(0, 2, 4)


LINE = signal_round.encode(_rounds(0)[0])
TWO_SERVICES = [*_rounds(0), *_rounds(2, service="other")]
REFUSED = {
    "out of order": ([_rounds(0, 4, 2)], {}, r"1:3: \S+ s before the round above it"),
    "the same time": ([_rounds(0, 2, 2)], {}, r"1:3: \S+ s before the round above it"),
    "files in the wrong order": ([_rounds(4), _rounds(0, 2)], {}, "2:1: 4 s before the round above it"),
    "two services": ([TWO_SERVICES], {}, "1:2: a round of prod/other, and those above are of prod/chat"),
    "empty": ([b""], {}, "1: no rounds"),
    "blank": ([b"\n \n"], {}, "1: no rounds"),
    "cut off": ([LINE + b"\n" + LINE[:-10]], {}, "1:2: not a round of a recording: .*truncated"),
    "missing": ([], {}, "1: No such file"),
    "too many rounds": ([_rounds(0, 2, 4)], {"MOST_ROUNDS": 2}, "1:3: too large"),
    "a line that is too long": ([_rounds(0)], {"MOST_LINE": len(LINE) - 1}, "1:1: longer than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_recording_that_is_not_whole_and_in_order_is_refused_with_the_line(tmp_path, monkeypatch, case):
    files, limits, message = REFUSED[case]
    for limit, most in limits.items():
        monkeypatch.setattr(recording, limit, most)
    paths = [tmp_path / "1", tmp_path / "2"][: max(1, len(files))]
    for path, content in zip(paths, files, strict=False):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            write(path, content)
    with pytest.raises(RecordingError, match=message):
        _read(*paths)
