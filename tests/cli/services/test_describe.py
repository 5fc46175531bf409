"""`legato describe` and `legato explain scaling` say in words what a status has; `--watch` prints each state once."""

import io
import json

import pytest
from known_signals import arriving, decoder, prefiller, spec
from local_services import answered

from legato_cli import main
from legato_cli.errors import ServiceUnavailable
from legato_cli.services import asking, describe, explain, showing, status
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_operator.autoscaler.signals import Signals

NOW = "2026-12-01T09:00:00Z"
BARE = {"name": "chat", "namespace": "prod", "generation": 1, "conditions": [], "pods": [], "scaling": None}
POD = {
    "name": "chat-decode-1", "pool": "decode", "ready": False, "message": "loading weights", "restarts": 1,
    "leaving": False, "revision": "0123456789", "created": NOW, "node": "node-7", "ports": {},
}  # fmt: skip
POOL = {
    "replicas": 1, "ready": 0, "desired": 2, "ranks": 4, "cappedBy": "scaling.gpuBudget", "revision": "b",
    "failedRevision": "b", "failureReason": "WorkerRefused", "failure": "no memory",
}  # fmt: skip
RECORD = {
    "pool": "decode",
    "time": NOW,
    "current": 1,
    "recommended": 2,
    "reason": "Blocks",
    "needed": 2,
    "cappedBy": "",
}


def condition(kind, status, reason, message):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}


STARTING = condition("Ready", "False", "Starting", "DecodeReady: 0 of 1")
SERVICE = BARE | {
    "generation": 3, "model": "chat", "url": "http://chat.prod.svc", "generationConfig": "None",
    "conditions": [STARTING, condition("KVTransportReady", "Unknown", "Unknown", "")],
    "pools": {"decode": POOL}, "scaling": {"pausedUntil": NOW, "pools": {}, "records": [RECORD]}, "pods": [POD],
    "events": [{"time": NOW, "type": "Warning", "reason": "WorkerRefused", "message": "no memory", "count": 3}],
}  # fmt: skip


def test_every_section_is_in_words():
    assert list(describe.lines(SERVICE)) == [
        "chat in namespace prod, generation 3",
        "  serves chat at http://chat.prod.svc",
        "  sampling defaults are neutral, whatever the model's are",
        "Conditions:",
        f"  Ready is False (Starting) since {NOW}",
        "    DecodeReady: 0 of 1",
        f"  KVTransportReady is Unknown (Unknown) since {NOW}",
        "Pools:",
        "  decode: 0 of 1 ready, 2 desired, 4 ranks each",
        "    more or fewer were asked for; scaling.gpuBudget does not allow them",
        "    revision b failed (WorkerRefused): no memory",
        "Workers and gateways:",
        f"  chat-decode-1  1 restart  since {NOW}  on node-7  loading weights",
        "Scaling:",
        f"  paused until {NOW}",
        f"  {NOW}  decode 1 -> 2  Blocks: 2 needed",
        "Events:",
        f"  {NOW}  Warning  WorkerRefused  no memory (3 times)",
    ]


def test_a_service_that_nobody_has_looked_at_yet_has_no_empty_sections():
    assert list(describe.lines(BARE | {"events": []})) == ["chat in namespace prod, generation 1"]
    assert list(status.lines(BARE))[1:] == ["NAME  READY  RESTARTS  REVISION  STATE"]


CAPPED = {"allowed": 2, "cappedBy": "scaling.gpuBudget"}
RAISED = {"allowed": 2, "cappedBy": "scaling.prefill.min with scaling.maxPrefillPerDecode"}


def _scaling():
    known = Signals((prefiller(), decoder()), arriving(600, 2000))
    made = decide(known, {}, spec(largest=3), {"prefill": 1, "decode": 1}, 0.0).pools
    pools = {name: record.entry(each, NOW) for name, each in made.items()}
    return {"pools": pools, "records": [{"pool": "prefill", **pools["prefill"]}]}


TERMS = [
    "prefill: 1 -> 3 (Arrivals, capped by scaling.prefill.max)",
    "fittingWork / minute / utilisation",
    "fittingWork 150",
    "Arrivals: 3.33 workers",
    "grows with a larger scaling.prefill.max: 4 are needed",
    f"{NOW}  prefill 1 -> 3  Arrivals: 4 needed",
]
LIMITS = [
    "prefill: 1 -> 3, limited to 2 (Arrivals, capped by scaling.gpuBudget)",
    "decode: 1 -> 1, raised to 2 (",
    "prefill 1 -> 3, limited to 2  Arrivals: 4 needed, capped by scaling.gpuBudget",
]


@pytest.mark.parametrize(
    ("prefill", "decode", "lines"),
    [
        ({}, {}, TERMS),
        (CAPPED, RAISED, LIMITS),
        ({}, {"missing": ["the load of decode-0"]}, ["not known: the load of decode-0"]),
        ({}, {"unmet": ["slo.tpot is 1 ms, but ..."]}, ["  slo.tpot is 1 ms, but ...\n"]),
    ],
    ids=["terms", "limits of both pools", "unknown signals", "an objective that no number of workers meets"],
)
def test_every_term_is_printed_with_its_equation_and_its_numbers(prefill, decode, lines):
    scaling = _scaling()
    scaling["pools"]["prefill"] |= prefill
    scaling["records"][0] |= prefill
    scaling["pools"]["decode"] |= decode
    text = "\n".join(explain.lines(scaling, 5))
    assert [line for line in lines if line not in text] == []


def test_a_pause_is_printed_first_and_no_changes_where_none_are_asked_for():
    text = "\n".join(explain.lines(_scaling() | {"pausedUntil": NOW}, 0))
    assert (text.startswith(f"paused until {NOW}"), "changes" in text) == (True, False)


@pytest.mark.parametrize(
    ("scaling", "code", "said"),
    [(_scaling(), 0, "Arrivals: 3.33 workers"), (None, 1, "scaling.mode must be Managed or Advisory")],
)
async def test_a_service_is_asked_and_where_nothing_was_decided_it_says_what_decides(legato, scaling, code, said):
    async def answer(order):
        assert order == {"do": "status"}
        return {"status": {"scaling": scaling}}

    ended = await answered(legato, answer, "explain", "scaling")
    assert (ended.code, said in ended.out + ended.err) == (code, True)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("ready", "as_json", "terminal", "shown"),
    [
        ([1, 1, 2, 2, 1], False, False, "1 ready\n\n2 ready\n\n1 ready\n"),
        ([1, 2], False, True, "1 ready\n\x1b[2J\x1b[H2 ready\n"),
        ([1, 1, 2], True, False, '{"ready":1}{"ready":2}'),
    ],
    ids=["only changes", "a terminal is written anew", "one object after another"],
)
def test_a_watch_prints_only_changes_and_pauses_before_each_look(ready, as_json, terminal, shown):
    out, slept = Terminal() if terminal else io.StringIO(), []
    answers = ({"ready": count} for count in ready)
    showing.show(answers, lambda service: iter([f"{service['ready']} ready"]), as_json, out, slept.append)
    text = "".join(out.getvalue().split()) if as_json else out.getvalue()
    assert (text, len(slept)) == (shown, len(ready) - 1)


@pytest.mark.parametrize("command", ["status", "describe"])
def test_a_watch_ends_with_1_and_the_reason_when_the_service_is_gone(command, monkeypatch, capsys):
    answers = iter([BARE | {"events": []}])

    def ask(_service, order):
        try:
            return {order["do"]: next(answers)}
        except StopIteration:
            raise ServiceUnavailable("no service is running") from None

    monkeypatch.setattr(asking, "_ask_local", ask)
    monkeypatch.setattr(showing, "INTERVAL", 0)
    assert main.main([command, "--watch", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "chat"
    assert err == f"legato {command}: no service is running\n"
