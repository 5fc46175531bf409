"""Turns are noted in the status of services, of this operator's namespaces only."""

import pytest

from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref
from legato_operator.local.store import Store
from legato_operator.planning.rollout.waves import Waves
from legato_operator.upgrading import UpgradeScheduler

_TURN = {"since": "x", "unserved": False}


@pytest.fixture
def store():
    return Store(SystemClock().timestamp)


async def _service(store, namespace, name, upgraded="WaitingForTurn", turn=None):
    """A service that is ready since 10 s, and which the operator upgraded so far."""
    ref = Ref("InferenceService", namespace, name)
    metadata = {"name": name, "namespace": namespace}
    await store.apply({"apiVersion": "v1", "kind": ref.kind, "metadata": metadata, "spec": {}}, "user")
    reasons = {"Ready": "AllReady", "Upgraded": upgraded, "Progressing": "UpToDate"}
    true = {"Ready"} | ({"Upgraded"} if upgraded == "UpToDate" else set())
    entry = {"message": "", "lastTransitionTime": "1970-01-01T00:00:10Z"}
    told = [{"type": kind, "status": str(kind in true), "reason": why, **entry} for kind, why in reasons.items()]
    await store.patch_status(ref, {"conditions": told, "upgradeTurn": turn})
    return ref


async def _turns(store, *refs):
    return [(await store.get(ref))["status"].get("upgradeTurn") is not None for ref in refs]


async def test_a_turn_that_is_over_is_ended_and_the_next_one_begins(store):
    refs = await _service(store, "a", "first", "UpToDate", _TURN), await _service(store, "a", "second")
    await UpgradeScheduler(store, store, SystemClock(), Waves(services=1, pause=0.0)).poll()
    assert await _turns(store, *refs) == [False, True]


async def test_services_of_another_release_have_their_turns_elsewhere(store):
    """They wait before ours in the order of namespaces, and would take the only place."""
    refs = [await _service(store, namespace, "demo") for namespace in ("a", "b")]
    waves, works_in = Waves(services=1, pause=0.0), {"b"}.__contains__
    await UpgradeScheduler(store, store, SystemClock(), waves, works_in=works_in).poll()
    assert await _turns(store, *refs) == [False, True]
