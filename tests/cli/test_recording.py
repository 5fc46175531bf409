"""Recordings: rounds as the operator would decide from, written one after the other into files of bounded size."""

import asyncio
import errno
import json

import pytest
import recordings
from budget import times
from hypothesis import HealthCheck, given, settings
from known_signals import NO_TRAFFIC, arriving, decoder, prefiller, signals
from local_services import DEMO, ScriptedGateways, answered, manifest, store_pod
from recordings import BEGIN, recorded_round

from legato_cli.errors import ServiceUnavailable
from legato_cli.recording.reader import RoundReader
from legato_cli.recording.recorder import SignalRecorder
from legato_cli.recording.recording_file import RecordingFile
from legato_operator.api import parsing
from legato_operator.autoscaler.signals import Signals
from legato_operator.local.store import Store
from legato_operator.manifests import common, pool, secret
from legato_protocol import names
from legato_protocol.wire.demand import DemandReport, LengthBucket
from legato_simulator.replay import signal_round
from legato_simulator.replay.signal_round import BadRound

KNOWN = Signals((prefiller(), decoder(sample_age=None, blocks=None), decoder("decode-1")), arriving(600, 2000))
QUIET = Signals((), NO_TRAFFIC)


def _back(made):
    return signal_round.decode(signal_round.encode(made))


@settings(max_examples=times(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(signals())
def test_a_round_comes_back_as_it_was(known):
    made = recorded_round(0, known)
    assert _back(made) == made
    assert b"\n" not in signal_round.encode(made)


def _broken(path, value):
    written = place = json.loads(signal_round.encode(recorded_round(0, KNOWN)))
    *inner, last = path.split(".")
    for name in inner:
        place = place[int(name)] if name.isdigit() else place[name]
    place[last] = value
    return json.dumps(written).encode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[" * 100_000, "Expected `object`"),
        (("version", 2), "version"),
        (("signals.workers.0.pool", "both"), "Invalid enum value 'both'"),
        (("signals.workers.0.age", -1), r"not a valid number: -1 .* at signals.workers\[0\].age"),
        (("signals.traffic.queued", 10**16), "not a valid number: 1e"),
        (("signals.traffic.seconds", 0), "seconds and recent_seconds must be above 0"),
        (("signals.traffic.recent_seconds", 0), "seconds and recent_seconds must be above 0"),
        (("desired", {}), "the same pools"),
        (("targets", {"decode": 1}), "the same pools"),
        (("signals.workers.2.blocks.size", 0), "size of blocks must be 1 or more"),
        (("signals.workers.0.prefill_cost", {"per_token": 1, "chunk_tokens": 0}), "chunk_tokens must be 1 or more"),
        (("time", None), "Expected `float`"),
    ],
)
def test_a_line_that_is_not_a_round_is_refused_with_the_reason(line, message):
    with pytest.raises(BadRound, match=message):
        signal_round.decode(line if isinstance(line, bytes) else _broken(*line))


def _report(requests):
    arrivals = (LengthBucket(64, requests, 100 * requests),) if requests else ()
    known = {"uptime": 1e6, "outputs": (), "output_squares": 0.0, "head_wait": {}, "waiting": (), "workers": ()}
    queued = dict.fromkeys(("queued_requests", "queued_tokens", "queued_prompt_tokens"), 0)
    return DemandReport(gateway="g", arrivals=arrivals, refused={}, **known, **queued)


class _Service:
    """A gateway and a prefill worker in a store, made 10 s after now. It is the reader's clock, too."""

    def __init__(self, addresses=None, **scaling):
        self.at, self.gateways, self.addresses = 1_800_000_000.0, ScriptedGateways(_report(0)), addresses
        self.store, self.item = Store(lambda: "2027-01-15T08:00:10.000000Z"), manifest(scaling=scaling)
        self.reader = RoundReader(self.store, DEMO, self.gateways, self)

    def now(self):
        return self.at

    def timestamp(self):
        return "2027-01-15T08:00:00Z"

    async def make(self):
        await self.store.apply(self.item, "test")
        service = parsing.service_from_object(await self.store.get(DEMO))
        await self.store.apply(secret.manifest(service, secret.ServiceToken("the token")), "test")
        for role, count in (("prefill", 6), ("decode", 1)):
            made = pool.scale(service, role, count)
            made["metadata"]["labels"] = {names.LABEL_SERVICE: DEMO.name}
            await self.store.apply({**made, "spec": {"role": role, "replicas": count}}, "test")
        await store_pod(self.store, DEMO, "gateway-0", common.GATEWAY, names.APP_GATEWAY)
        await store_pod(self.store, DEMO, "prefill-0", "prefill", names.APP_WORKER)

    async def read(self, *steps):
        """A reading after each number of seconds, by gateways that counted this number of requests."""
        await self.make()
        rounds = []
        for seconds, requests in steps:
            self.at += seconds
            self.gateways.report_given = _report(requests)
            rounds.append(await self.reader.read(self.addresses))
        return rounds


async def test_rates_are_known_from_the_second_reading_on_and_not_after_a_gap():
    first, second, last = await _Service().read((0, 100), (2, 160), (31, 200))
    assert (first.signals.traffic, last.signals.traffic) == (None, None)
    assert second.signals.traffic.arrivals[0].requests == 60
    assert (second.namespace, second.service, second.mode) == ("default", "demo", "Managed")
    assert [worker.name for worker in second.signals.workers] == ["prefill-0"]


async def test_sizes_are_recorded_as_they_are_and_as_limits_leave_them():
    (made,) = await _Service(prefill={"max": 3}).read((0, 0))
    assert (made.desired, made.targets) == ({"prefill": 6, "decode": 1}, {"prefill": 3, "decode": 1})


async def test_clocks_that_differ_make_no_round_that_cannot_be_read():
    (made,) = await _Service().read((0, 0))
    assert made.signals.workers[0].age == 0
    assert _back(made) == made


@pytest.mark.parametrize(("reached", "asked"), [("gateway-1", []), ("gateway-0", ["127.0.0.1:9"] * 2)])
async def test_a_gateway_that_is_not_reached_is_silent_and_not_idle(reached, asked):
    service = _Service({reached: "127.0.0.1:9"})
    _, last = await service.read((0, 0), (2, 0))
    assert (last.signals.traffic is not None) == bool(asked)
    assert service.gateways.asked == asked


@pytest.mark.parametrize("scaling", [None, {"pools": {"prefill": {"reason": "Arrivals"}}, "records": []}])
async def test_the_reason_of_the_last_decision_is_kept(scaling):
    service = _Service()
    await service.make()
    await service.store.patch_status(DEMO, {"scaling": scaling})
    assert (await service.reader.read()).reasons == ({"prefill": "Arrivals"} if scaling else {})


class _Disk:
    """A clock in virtual time, a service that may fail, and a disk that may be full."""

    def __init__(self, failing=(), full=(), set_back=None):
        self.at, self.failing, self.full, self.set_back = 0.0, failing, full, set_back  # times from which it does
        self.lines, self.reported = [], []

    def now(self):
        return self.at

    async def sleep(self, seconds):
        self.at += seconds

    async def round(self):
        if self.at in self.failing:
            raise ServiceUnavailable("no service is running")
        return recorded_round(self.at - (5 if self.set_back is not None and self.at >= self.set_back else 0), QUIET)

    def write(self, line):
        if self.at in self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.lines.append(line)

    def record(self, seconds):
        recorder = SignalRecorder(self.round, self, self, self.reported.append)
        asyncio.run(recorder.run(seconds))
        assert recorder.rounds == len(self.lines)
        return [signal_round.decode(line).time - BEGIN for line in self.lines]


GOES_ON = "records again; 3 rounds are missing"


@pytest.mark.parametrize(
    ("given", "seconds", "written", "reported"),
    [
        ({}, 10, [0, 2, 4, 6, 8], []),
        ({"full": {4, 6, 8}}, 14, [0, 2, 10, 12], ["cannot write: No space left on device; trying again", GOES_ON]),
        ({"failing": {4, 6, 8}}, 14, [0, 2, 10, 12], ["no service is running; trying again", GOES_ON]),
    ],
    ids=["every two seconds", "a full disk", "a service that is gone"],
)
def test_rounds_are_written_and_a_failure_is_reported_once(given, seconds, written, reported):
    disk = _Disk(**given)
    assert (disk.record(seconds), disk.reported) == (written, reported)


def test_a_service_that_cannot_be_asked_at_first_ends_it():
    with pytest.raises(ServiceUnavailable):
        _Disk(failing={0}).record(8)


def test_a_clock_that_was_set_back_never_puts_rounds_out_of_order():
    disk = _Disk(set_back=4)
    assert disk.record(14) == [0, 2, 3, 5, 7]
    assert disk.reported[0].startswith("the clock was set back by")
    assert len(disk.reported) == 2


def test_older_lines_move_on_and_the_oldest_go(tmp_path):
    file = RecordingFile(tmp_path / "s.jsonl", 4 * 6)
    for number in range(10):
        file.write(b"%02d" % number)  # 3 bytes with the line break, 2 lines in a file
    assert [each.read_bytes() for each in file.written] == [b"02\n03\n", b"04\n05\n", b"06\n07\n", b"08\n09\n"]
    assert [each.name for each in file.written] == ["s.jsonl.3", "s.jsonl.2", "s.jsonl.1", "s.jsonl"]
    file.close()


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path, small_files):
    path = tmp_path / "s.jsonl"
    file = RecordingFile(path, 1 << 20)
    file.write(b"a" * 50)
    with small_files(100), pytest.raises(OSError, match="large"):
        file.write(b"b" * 80)
    assert path.read_bytes() == b"a" * 50 + b"\n"
    file.write(b"c" * 80)
    assert path.read_bytes() == b"a" * 50 + b"\n" + b"c" * 80 + b"\n"
    file.close()


async def _answer(order):
    assert order == {"do": "signals"}
    return {"round": signal_round.encode(recorded_round(0, KNOWN)).decode()}


async def _refuse(_order):
    return {"error": "unknown command (is the running `legato up` of the same version?)"}


async def test_a_running_service_is_recorded_and_the_replay_is_named(tmp_path, legato):
    file = tmp_path / "s.jsonl"
    code, out, err = await answered(legato, _answer, "record", file, "--for", "1s")
    assert code == 0
    assert json.loads(file.read_text())["service"] == "chat"
    assert f"writing to {file}, at most 1Gi in 4 files" in err
    assert f"1 rounds; replay them with: legato simulate -f MANIFEST --signals {file}" in out


@pytest.mark.parametrize(
    ("answer", "name", "code", "message"),
    [
        (_answer, "kept.jsonl", 2, "exists (choose another name)"),
        (_answer, "none/s.jsonl", 2, "No such file or directory"),
        (_refuse, "s.jsonl", 1, "is the running `legato up` of the same version?"),
    ],
    ids=["a file that exists", "no folder", "a service that refuses"],
)
async def test_the_reason_why_nothing_is_recorded_is_given(tmp_path, legato, answer, name, code, message):
    kept = recordings.write(tmp_path / "kept.jsonl", [recorded_round(0, KNOWN)])
    before = kept.read_bytes()
    ended = await answered(legato, answer, "record", tmp_path / name, "--for", "1s")
    assert (ended.code, message in ended.err) == (code, True)
    assert kept.read_bytes() == before
