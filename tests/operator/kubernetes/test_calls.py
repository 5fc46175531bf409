"""Calls that a service costs the API server: their number is promised, whatever the machine has to do."""

import collections
import re

WRITES = 45  # of a service with 20 workers: two for each pool, and one for everything else that it owns
A_PASS = 4  # its token, and the status of the service and of each pool where it changes
EVENTS = 6
START = ("Ready is True", "KVTransportReady is True", "Progressing is False")  # reported last
PASSES = re.compile(r'^legato_operator_reconciles_total\{result="done"\} ([\d.e+]+)', re.M)


async def test_service_with_twenty_workers_is_settled_with_few_calls_and_then_costs_one_a_pass(s, operator, build):
    for metric in ("cache_synced", "leader"):
        await s.wait(lambda metric=metric: operator.metric(metric), 1)
    before, _ = await _counted(operator)
    pools = {"prefill": {"replicas": 10}, "decode": {"replicas": 10}}
    await s.serve(build(scaling={"mode": "Fixed"}, **pools))
    await s.wait(lambda: _has_all_events(s, operator))
    after, passes = await _counted(operator)
    _check_until_settled(after - before, passes)
    await s.wait(lambda: _calls_at_rest(s, operator), collections.Counter())


async def _calls_at_rest(s, operator):
    """Returns the calls of three passes beyond one read of the token in each."""
    before, passes = await _counted(operator)
    for number in range(3):
        mark = {"touched": str(number)}
        await s.edit("WorkerPool", "demo-decode", lambda pool, mark=mark: pool["metadata"]["annotations"].update(mark))
        await s.wait(lambda: _has_more_passes(operator, passes))
    after, more = await _counted(operator)
    return after - before - collections.Counter({("get", "Secret"): more - passes})


def _check_until_settled(calls, passes):
    """60 where its workers are ready in three passes; how many it takes is not the operator's to say."""
    events = sum(count for (_, kind), count in calls.items() if kind == "Event")
    writes = sum(count for (verb, kind), count in calls.items() if verb in ("create", "apply") and kind != "Event")
    assert calls["create", "Pod"] == 20
    assert writes <= WRITES, str(calls)
    assert events <= EVENTS, str(calls)
    assert calls.total() - writes - events <= A_PASS * passes, str(calls)
    assert not [what for what in calls if what[0] == "list"]  # passes read what is watched
    assert calls["get", "Secret"] <= passes + 1


async def _counted(operator):
    """Calls by verb and kind, but for those of the Lease and of audits, which are not a service's; and passes."""
    calls = collections.Counter()
    for (verb, kind, _outcome), count in (await operator.calls()).items():
        if kind != "Lease" and verb != "list_metadata":
            calls[verb, kind] += count
    return calls, sum(int(float(count)) for count in PASSES.findall((await operator.get("/metrics")).text))


async def _has_more_passes(operator, passes):
    return (await _counted(operator))[1] > passes


async def _has_all_events(s, operator):
    """True once the Events of its start are written, one after the other alongside the passes, and counted."""
    notes = [event["note"] for event in await s.events() if event.get("action") == "Reconcile"]
    calls, _ = await _counted(operator)
    return calls["create", "Event"] >= len(notes) and all(any(n.startswith(start) for n in notes) for start in START)
