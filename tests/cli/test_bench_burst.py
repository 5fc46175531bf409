"""`legato bench --burst`: when it sends, which phase an answer counts in, and how the autoscaler's steps are told."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from known_signals import arriving, decoder, prefiller, spec

from legato_cli import admin, main
from legato_cli.bench import burst
from legato_cli.bench.burst import BurstPhase, ScalingWatch
from legato_cli.bench.client import Record
from legato_cli.bench.load import Run
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals

PHASES = [BurstPhase(5, 20), BurstPhase(50, 10), BurstPhase(1, 30)]
BEGAN = 1_796_115_600.0  # 2026-12-01T09:00:00Z


def _change(time: str) -> dict[str, Any]:
    known = Signals((prefiller(), decoder()), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    return {"pool": "prefill", **record.of(made["prefill"], time)}


def test_arrivals_follow_each_phase_s_rate_in_its_own_time_and_repeat_by_seed() -> None:
    sent = burst.arrivals(PHASES, 1)
    assert sent == burst.arrivals(PHASES, 1) != burst.arrivals(PHASES, 2)
    assert [at for _, at in sent] == sorted(at for _, at in sent)
    for number, (begins, ends) in enumerate([(0, 20), (20, 30), (30, 60)]):
        times = [at for phase, at in sent if phase == number]
        assert all(begins <= at < ends for at in times)
        assert len(times) == pytest.approx(PHASES[number].rate * PHASES[number].seconds, rel=0.4)


def test_a_request_counts_in_the_phase_that_it_arrived_in() -> None:
    records = [Record(tokens, 0.0) for tokens in range(3)]
    runs = burst.by_phase(records, [(0, 1.0), (0, 19.0), (2, 40.0)], PHASES)
    assert [run.records for run in runs] == [records[:2], [], records[2:]]
    assert [run.seconds for run in runs] == [20, 10, 30]


def test_only_changes_of_this_time_are_told_below_their_phase_with_their_arithmetic() -> None:
    before, during, later = (_change(f"2026-12-01T09:00:{second}Z") for second in ("00", "25", "59"))
    answers = [[before], [before, during], [during, later]]

    def ask() -> dict[str, Any]:
        return {"records": answers.pop(0) if len(answers) > 1 else answers[0]}

    async def check() -> ScalingWatch:
        watch = ScalingWatch(ask, BEGAN)
        await watch.look(first=True)
        await watch.look()
        await watch.look()
        return watch

    told = list(burst.lines(asyncio.run(check()), PHASES))
    text = "\n".join(told)
    assert told[:2] == ["5 req/s for 20 s:", "  no change"]
    assert told[2:4] == [
        "50 req/s for 10 s:",
        "  +25 s  prefill 1 -> 3  Arrivals: 4 needed, capped by scaling.prefill.max",
    ]
    assert "    3.33 = " in text
    assert "max(fittingWork / minute, (fittingWork - chance) / window) / utilisation" in text
    assert "fittingWork 150" in text
    assert "  +59 s  prefill 1 -> 3" in text.partition("1 req/s for 30 s:")[2]
    assert text.count("prefill 1 -> 3") == 2


def test_a_load_is_not_lost_where_the_autoscaler_cannot_be_read() -> None:
    def ask() -> dict[str, Any]:
        raise LookupError("no service is running")

    async def check() -> tuple[Run, ScalingWatch]:
        watch = ScalingWatch(ask, BEGAN)

        async def load() -> Run:
            return Run([], 1.0)

        return await burst.watched(watch, load()), watch

    run, watch = asyncio.run(check())
    assert run.seconds == 1.0
    assert list(burst.lines(watch, PHASES)) == ["the autoscaler's changes are not known: no service is running"]


class _Server(BaseHTTPRequestHandler):
    """Answers with one token."""

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        events = ({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 1}})
        self._answer(b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_the_command_measures_phases_and_asks_a_running_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = tmp_path / "found.json"
    asked = 0

    async def answer(order: dict[str, Any]) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"status": {"scaling": {"pools": {}, "records": [_change("2026-12-01T09:00:25Z")] if asked > 1 else []}}}

    async def check(url: str) -> int:
        async with admin.listening("demo", answer):
            command = ["bench", "--url", url, "--burst", "40:500ms,10:500ms", "--input-tokens", "4"]
            return await asyncio.to_thread(main.main, [*command, "--output-tokens", "1", "--json", str(found)])

    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert asyncio.run(check(f"http://127.0.0.1:{server.server_address[1]}")) == 0
        server.shutdown()
        thread.join()
    said = capsys.readouterr().out
    assert "| 40 req/s for 0.5 s |" in said
    assert "prefill 1 -> 3  Arrivals: 4 needed" in said
    written = json.loads(found.read_text())
    assert [load["load"] for load in written["loads"]] == ["40 req/s for 0.5 s", "10 req/s for 0.5 s"]
    assert written["loads"][0]["failed"] == 0
    assert [change["reason"] for change in written["scaling"]] == ["Arrivals"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--burst", "8"], "not a valid phase: 8 (RATE:DURATION, such as 8:60s)"),
        (["--burst", "0:1s"], "0"),
        (["--burst", "1:1s", "--rate", "2"], "--rate and --burst cannot be given together"),
        (["--burst", "1:1s", "--workload", "trace"], "--burst has arrival times of its own"),
    ],
)
def test_bad_arguments_exit_with_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main.main(["bench", "--url", "http://127.0.0.1:1", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert said in capsys.readouterr().err
