"""What the operator writes, on a real API server."""

import pytest

from legato_operator import apply
from legato_operator.acceptance import accept
from legato_operator.clock import SystemClock
from legato_operator.cluster import ref_of
from legato_operator.errors import Conflict, Forbidden
from legato_operator.kubernetes.api import KubernetesCluster
from legato_operator.manifests import common, placement
from legato_operator.observing.observe import observe
from legato_operator.planning.actions import Apply
from legato_operator.planning.plan import plan

PLACE = placement.kubernetes("engine:test", "gateway:test")


class NoWorkers:
    """None answers."""

    async def state(self, address, tokens, tls=None):
        return None


async def test_everything_applied_twice_changes_nothing(s, build):
    """All objects of a service, its pods among them: the second apply leaves every resourceVersion as it is."""
    await s.make(build())
    written = {}
    for _ in range(3):  # pods start in the pass after their pools
        stored = await s.cluster.get(s.ref())
        accepted = await accept(s.cluster, stored, PLACE)
        observed = await observe(s.cluster, NoWorkers(), SystemClock(), stored, accepted)
        phases = plan(observed, PLACE).phases
        await apply.apply(s.cluster, NoWorkers(), observed, phases)
        done = [action for phase in phases for action in phase.actions if isinstance(action, Apply)]
        written |= {(ref_of(action.item), action.manager): action for action in done}
    kinds = {ref.kind for ref, _ in written}
    assert kinds >= {"Pod", *common.OWNED_KINDS} - {common.REVISION}  # which keeps what came up; no worker answers here
    for action in written.values():
        await s.wait(lambda action=action: _changes_nothing(s, action))


async def test_field_that_excludes_one_of_ours_is_dropped_with_the_right_to_patch_alone(s):
    """The chart's account has none to update what it owns."""
    client = s.api.client()
    client.default_headers["Impersonate-User"] = "patcher"
    patcher = KubernetesCluster(client)
    for item in _rights(s.name, "patcher"):
        await s.cluster.apply(item, "test")
    metadata = {"name": "budget", "namespace": s.name}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata}
    ours = {**budget, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    await s.wait(lambda: _is_let(patcher, ours))
    theirs = {"minAvailable": 1, "selector": {}}
    await s.edit("PodDisruptionBudget", "budget", lambda found: found.update(spec=theirs))
    assert (await patcher.apply(ours, "operator", force=True))["spec"] == ours["spec"]
    patcher.close()


def _rights(namespace, user):
    """A Role for budgets, and its RoleBinding."""
    group = "rbac.authorization.k8s.io"
    common = {"apiVersion": f"{group}/v1", "metadata": {"name": user, "namespace": namespace}}
    rule = {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "create", "patch"]}
    yield {**common, "kind": "Role", "rules": [rule]}
    subject = {"apiGroup": group, "kind": "User", "name": user}
    role = {"apiGroup": group, "kind": "Role", "name": user}
    yield {**common, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]}


async def _is_let(cluster, item):
    """Whether it was applied: a right is in force a moment after it was written."""
    try:
        await cluster.apply(item, "operator", force=True)
    except Forbidden:
        return False
    return True


async def _changes_nothing(s, action):
    """Asked again where Kubernetes' own controllers may have written between the two calls. Pods are made but once."""
    before = await s.cluster.get(ref_of(action.item))
    if before["kind"] == "Pod":
        with pytest.raises(Conflict):
            await s.cluster.create(action.item, action.manager)
        return True
    after = await s.cluster.apply(action.item, action.manager, action.force)
    return after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
