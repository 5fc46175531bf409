"""`legato bench --burst`: when it sends, which phase an answer counts in, and how the autoscaler's steps are told."""

import json

import pytest
from aiohttp import web
from answering_server import serving
from known_signals import arriving, decoder, prefiller, spec
from local_services import answered

from legato_cli.bench import burst
from legato_cli.bench.burst import BurstPhase, ScalingWatch
from legato_cli.bench.client import Record
from legato_cli.bench.load import Run
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals

pytestmark = pytest.mark.anyio
PHASES = [BurstPhase(5, 20), BurstPhase(50, 10), BurstPhase(1, 30)]
BEGAN = 1_796_115_600.0  # 2026-12-01T09:00:00Z


def _change(time):
    known = Signals((prefiller(), decoder()), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    return {"pool": "prefill", **record.of(made["prefill"], time)}


def test_arrivals_follow_each_phase_s_rate_in_its_own_time_and_repeat_by_seed():
    sent = burst.arrivals(PHASES, 1)
    assert sent == burst.arrivals(PHASES, 1) != burst.arrivals(PHASES, 2)
    assert [at for _, at in sent] == sorted(at for _, at in sent)
    for number, (begins, ends) in enumerate([(0, 20), (20, 30), (30, 60)]):
        times = [at for phase, at in sent if phase == number]
        assert all(begins <= at < ends for at in times)
        assert len(times) == pytest.approx(PHASES[number].rate * PHASES[number].seconds, rel=0.4)


def test_a_request_counts_in_the_phase_that_it_arrived_in():
    records = [Record(tokens, 0.0) for tokens in range(3)]
    runs = burst.by_phase(records, [(0, 1.0), (0, 19.0), (2, 40.0)], PHASES)
    assert [run.records for run in runs] == [records[:2], [], records[2:]]
    assert [run.seconds for run in runs] == [20, 10, 30]


async def test_only_changes_of_this_time_are_told_below_their_phase_with_their_arithmetic():
    before, during, later = (_change(f"2026-12-01T09:00:{second}Z") for second in ("00", "25", "59"))
    answers = [[before], [before, during], [during, later]]

    def ask():
        return {"records": answers.pop(0) if len(answers) > 1 else answers[0]}

    watch = ScalingWatch(ask, BEGAN)
    await watch.look(first=True)
    await watch.look()
    await watch.look()
    told = list(burst.lines(watch, PHASES))
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


async def test_a_load_is_not_lost_where_the_autoscaler_cannot_be_read():
    def ask():
        raise LookupError("no service is running")

    async def load():
        return Run([], 1.0)

    watch = ScalingWatch(ask, BEGAN)
    assert (await burst.watched(watch, load())).seconds == 1.0
    assert list(burst.lines(watch, PHASES)) == ["the autoscaler's changes are not known: no service is running"]


async def _token(request):
    """One token as an answer, and the list of models."""
    if request.method == "GET":
        return web.json_response({"data": [{"id": "m"}]})
    events = ({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 1}})
    return web.Response(text="".join(f"data: {json.dumps(event)}\n\n" for event in events))


async def test_the_command_measures_phases_and_asks_a_running_service(tmp_path, legato):
    asked, file = [], tmp_path / "found.json"

    async def answer(order):
        asked.append(order)
        records = [_change("2026-12-01T09:00:25Z")] if len(asked) > 1 else []
        return {"status": {"scaling": {"pools": {}, "records": records}}}

    async with serving(_token) as address:
        flags = ("--burst", "40:500ms,10:500ms", "--input-tokens", 4, "--output-tokens", 1, "--json", file)
        code, out, _ = await answered(legato, answer, "bench", "--url", f"http://{address}", *flags)
    assert code == 0
    assert "| 40 req/s for 0.5 s |" in out
    assert "prefill 1 -> 3  Arrivals: 4 needed" in out
    written = json.loads(file.read_text())
    assert [load["load"] for load in written["loads"]] == ["40 req/s for 0.5 s", "10 req/s for 0.5 s"]
    assert written["loads"][0]["failed"] == 0
    assert [change["reason"] for change in written["scaling"]] == ["Arrivals"]
