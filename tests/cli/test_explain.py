"""`legato explain scaling` prints the arithmetic of what is in the status, from either kind of cluster."""

import asyncio

from known_signals import arriving, decoder, prefiller, spec

from legato_cli import admin, explain, main
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals


def _scaling():
    known = Signals((prefiller(), decoder()), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    pools = {name: record.of(each, "2026-12-01T09:00:00Z") for name, each in made.items()}
    return {"pools": pools, "records": [{"pool": "prefill", **pools["prefill"]}]}


def test_every_term_is_printed_with_its_equation_and_its_numbers():
    text = "\n".join(explain.lines(_scaling(), 5))
    assert "prefill: 1 -> 3 (Arrivals, capped by scaling.prefill.max)" in text
    assert "max(fittingWork / minute, (fittingWork - chance) / window) / utilisation" in text
    assert "fittingWork 150" in text
    assert "Arrivals: 3.33 workers" in text
    assert "grows with a larger scaling.prefill.max: 4 are needed" in text
    assert "2026-12-01T09:00:00Z  prefill 1 -> 3  Arrivals: 4 needed" in text


def test_what_limits_of_both_pools_make_of_a_wish_is_printed():
    scaling = _scaling()
    scaling["pools"]["prefill"] |= {"allowed": 2, "cappedBy": "scaling.gpuBudget"}
    scaling["records"][0] |= {"allowed": 2, "cappedBy": "scaling.gpuBudget"}
    scaling["pools"]["decode"] |= {"allowed": 2, "cappedBy": "scaling.prefill.min with scaling.maxPrefillPerDecode"}
    text = "\n".join(explain.lines(scaling, 5))
    assert "prefill: 1 -> 3, limited to 2 (Arrivals, capped by scaling.gpuBudget)" in text
    assert "decode: 1 -> 1, raised to 2 (" in text
    assert "prefill 1 -> 3, limited to 2  Arrivals: 4 needed, capped by scaling.gpuBudget" in text


def test_a_pause_and_what_is_not_known_are_printed():
    scaling = _scaling() | {"pausedUntil": "2026-12-01T10:00:00Z"}
    scaling["pools"]["decode"]["missing"] = ["the load of decode-0"]
    text = "\n".join(explain.lines(scaling, 0))
    assert text.startswith("paused until 2026-12-01T10:00:00Z")
    assert "not known: the load of decode-0" in text
    assert "changes" not in text


def test_an_objective_that_no_number_of_workers_meets_is_printed():
    scaling = _scaling()
    scaling["pools"]["decode"]["unmet"] = ["slo.tpot is 1 ms, but ..."]
    assert "  slo.tpot is 1 ms, but ..." in list(explain.lines(scaling, 0))


def test_a_running_service_is_asked(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def answer(order):
        return {"status": {"scaling": _scaling() if order == {"do": "status"} else None}}

    async def check():
        async with admin.listening("demo", answer):
            return await asyncio.to_thread(main.main, ["explain", "scaling"])

    assert asyncio.run(check()) == 0
    assert "Arrivals: 3.33 workers" in capsys.readouterr().out


def test_where_nothing_was_decided_it_says_what_decides(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def answer(order):
        return {"status": {"scaling": None}}

    async def check():
        async with admin.listening("demo", answer):
            return await asyncio.to_thread(main.main, ["explain", "scaling"])

    assert asyncio.run(check()) == 1
    assert "scaling.mode must be Managed or Advisory" in capsys.readouterr().err
    assert main.main(["explain", "scaling", "--namespace", "default"]) == 1
    assert "--service is required" in capsys.readouterr().err
