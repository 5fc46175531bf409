"""Turns are noted in the status of services, of this operator's namespaces only."""

from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref
from legato_operator.local.store import Store
from legato_operator.planning.waves import Waves
from legato_operator.upgrading import UpgradeTurns

_ENTRY = {"message": "", "lastTransitionTime": "1970-01-01T00:00:10Z"}
_WAITS = {
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "AllReady", **_ENTRY},
        {"type": "Upgraded", "status": "False", "reason": "WaitingForTurn", **_ENTRY},
        {"type": "Progressing", "status": "False", "reason": "UpToDate", **_ENTRY},
    ]
}


async def test_a_turn_that_is_over_is_ended_and_the_next_one_begins():
    store = Store(SystemClock().timestamp)
    done = {"type": "Upgraded", "status": "True", "reason": "UpToDate", **_ENTRY}
    over = [done if each["type"] == "Upgraded" else each for each in _WAITS["conditions"]]
    refs = [Ref("InferenceService", "a", name) for name in ("first", "second")]
    for ref in refs:
        metadata = {"name": ref.name, "namespace": ref.namespace}
        await store.apply({"apiVersion": "v1", "kind": ref.kind, "metadata": metadata, "spec": {}}, "user")
    await store.patch_status(refs[0], {"conditions": over, "upgradeTurn": {"since": "x", "unserved": False}})
    await store.patch_status(refs[1], _WAITS)
    await UpgradeTurns(store, store, SystemClock(), Waves(services=1, pause=0.0)).look()
    first, second = [(await store.get(ref))["status"].get("upgradeTurn") for ref in refs]
    assert first is None
    assert second is not None


class _Clock(SystemClock):
    time = 1000.0

    def now(self):
        return self.time


async def test_it_says_what_holds_all_turns_for_as_long_as_that_does():
    store = Store(SystemClock().timestamp)
    assert "while upgrade.services is 0" in UpgradeTurns(store, store, SystemClock(), Waves(0, 0.0)).held
    clock = _Clock()
    turns = UpgradeTurns(store, store, clock, Waves(services=1, pause=0.0))
    failed = {"type": "Upgraded", "status": "False", "reason": "UpgradeFailed", **_ENTRY}
    stuck = [failed if each["type"] == "Upgraded" else each for each in _WAITS["conditions"]]
    first = Ref("InferenceService", "a", "first")
    metadata = {"name": first.name, "namespace": first.namespace}
    await store.apply({"apiVersion": "v1", "kind": first.kind, "metadata": metadata, "spec": {}}, "user")
    await store.patch_status(first, {"conditions": stuck, "upgradeTurn": {"since": "x", "unserved": False}})
    assert turns.held == ""
    await turns.look()
    assert turns.held == "no turn begins until these are ready: a/first"
    await store.patch_status(first, {"conditions": _WAITS["conditions"], "upgradeTurn": None})
    clock.time += turns.every
    await turns.look()
    assert turns.held == ""


async def test_services_of_another_release_have_their_turns_elsewhere():
    """They wait before ours in the order of namespaces, and would take the only place."""
    store = Store(SystemClock().timestamp)
    refs = [Ref("InferenceService", namespace, "demo") for namespace in ("a", "b")]
    for ref in refs:
        metadata = {"name": ref.name, "namespace": ref.namespace}
        await store.apply({"apiVersion": "v1", "kind": ref.kind, "metadata": metadata, "spec": {}}, "user")
        await store.patch_status(ref, _WAITS)
    works_in = {"b"}.__contains__
    await UpgradeTurns(store, store, SystemClock(), Waves(services=1, pause=0.0), works_in=works_in).look()
    theirs, ours = [(await store.get(ref))["status"].get("upgradeTurn") for ref in refs]
    assert theirs is None
    assert ours is not None
