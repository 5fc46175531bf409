"""Turns are noted in the status of services, of this operator's namespaces only."""

import asyncio

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


def test_services_of_another_release_have_their_turns_elsewhere():
    """They wait before ours in the order of namespaces, and would take the only place."""

    async def check():
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

    asyncio.run(check())
