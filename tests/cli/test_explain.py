"""`legato explain scaling` prints the arithmetic of what is in the status, from either kind of cluster."""

import pytest
from known_signals import arriving, decoder, prefiller, spec
from local_services import answered

from legato_cli import explain
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals

CAPPED = {"allowed": 2, "cappedBy": "scaling.gpuBudget"}
RAISED = {"allowed": 2, "cappedBy": "scaling.prefill.min with scaling.maxPrefillPerDecode"}


def _scaling():
    known = Signals((prefiller(), decoder()), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    pools = {name: record.of(each, "2026-12-01T09:00:00Z") for name, each in made.items()}
    return {"pools": pools, "records": [{"pool": "prefill", **pools["prefill"]}]}


@pytest.mark.parametrize(
    ("prefill", "decode", "lines"),
    [
        (
            {},
            {},
            [
                "prefill: 1 -> 3 (Arrivals, capped by scaling.prefill.max)",
                "max(fittingWork / minute, (fittingWork - chance) / window) / utilisation",
                "fittingWork 150",
                "Arrivals: 3.33 workers",
                "grows with a larger scaling.prefill.max: 4 are needed",
                "2026-12-01T09:00:00Z  prefill 1 -> 3  Arrivals: 4 needed",
            ],
        ),
        (
            CAPPED,
            RAISED,
            [
                "prefill: 1 -> 3, limited to 2 (Arrivals, capped by scaling.gpuBudget)",
                "decode: 1 -> 1, raised to 2 (",
                "prefill 1 -> 3, limited to 2  Arrivals: 4 needed, capped by scaling.gpuBudget",
            ],
        ),
        ({}, {"missing": ["the load of decode-0"]}, ["not known: the load of decode-0"]),
        ({}, {"unmet": ["slo.tpot is 1 ms, but ..."]}, ["  slo.tpot is 1 ms, but ...\n"]),
    ],
    ids=["terms", "limits of both pools", "what is not known", "an objective that no number of workers meets"],
)
def test_every_term_is_printed_with_its_equation_and_its_numbers(prefill, decode, lines):
    scaling = _scaling()
    scaling["pools"]["prefill"] |= prefill
    scaling["records"][0] |= prefill
    scaling["pools"]["decode"] |= decode
    text = "\n".join(explain.lines(scaling, 5))
    assert [line for line in lines if line not in text] == []


def test_a_pause_is_printed_first_and_no_changes_are_where_none_are_asked_for():
    text = "\n".join(explain.lines(_scaling() | {"pausedUntil": "2026-12-01T10:00:00Z"}, 0))
    assert text.startswith("paused until 2026-12-01T10:00:00Z")
    assert "changes" not in text


@pytest.mark.anyio
async def test_a_running_service_is_asked_and_where_nothing_was_decided_it_says_what_decides(legato):
    scaling = [_scaling(), None]

    async def answer(order):
        assert order == {"do": "status"}
        return {"status": {"scaling": scaling.pop(0)}}

    code, out, _ = await answered(legato, answer, "explain", "scaling")
    assert code == 0
    assert "Arrivals: 3.33 workers" in out
    code, _, err = await answered(legato, answer, "explain", "scaling")
    assert code == 1
    assert "scaling.mode must be Managed or Advisory" in err
