"""An operator without rights on Secrets gives itself those of one namespace, and of no other."""

import asyncio

import pytest
import release

from legato_operator.cluster import Ref
from legato_operator.errors import ClusterError, Forbidden, ObjectNotFound
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.kubernetes.token_access import Account, TokenAccess

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
OURS = {"app.kubernetes.io/managed-by": "legato-operator"}


class Passes:
    def __init__(self):
        self.done = []
        self.due = 1.0

    async def reconcile(self, ref, woken=True):
        self.done.append(ref.namespace)
        return self.due

    async def record_failure(self, ref, error):
        raise error


@pytest.fixture
def passes():
    return Passes()


@pytest.fixture
async def mine(s):
    """The API server as an account sees it that may read services, and bind one role."""
    tokens = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    few = [
        {"apiGroups": ["serving.legato.dev"], "resources": ["inferenceservices"], "verbs": ["get", "list"]},
        {"apiGroups": [GROUP], "resources": ["rolebindings"], "verbs": ["get", "list", "create", "patch", "delete"]},
        {"apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": [f"{s.name}-tokens"], "verbs": ["bind"]},
    ]
    subject = {"kind": "ServiceAccount", "namespace": s.name, "name": "operator"}
    reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": s.name}
    for path, item in (
        ("serviceaccounts", {"metadata": {"name": "operator"}}),
        (f"{RBAC}/clusterroles", {"metadata": {"name": f"{s.name}-tokens"}, "rules": [tokens]}),
        (f"{RBAC}/clusterroles", {"metadata": {"name": s.name}, "rules": few}),
        (f"{RBAC}/clusterrolebindings", {"metadata": {"name": s.name}, "roleRef": reference, "subjects": [subject]}),
    ):
        status, answer = await s.call("POST", path, item)
        assert status < 300, answer
    with release.tools(s.api) as tools:
        account = await asyncio.to_thread(tools.as_account, s.name, "operator")
    cluster = KubernetesCluster(account.client())
    yield cluster
    cluster.close()


@pytest.fixture
def access(s, passes, mine):
    return TokenAccess(passes, mine, f"{s.name}-tokens", Account(s.name, "operator"))


async def test_rights_on_tokens_come_with_a_namespaces_first_service(space, s, build, mine, passes, access):
    async with space() as other:
        await s.make(build())
        with pytest.raises(Forbidden):
            await mine.get(Ref("Secret", s.name, "demo-token"))
        await access.reconcile(s.ref())
        assert passes.done == [s.name]
        with pytest.raises(ObjectNotFound):
            await mine.get(Ref("Secret", s.name, "demo-token"))
        with pytest.raises(Forbidden):
            await mine.get(Ref("Secret", other.name, "demo-token"))


async def test_service_that_is_gone_gives_no_rights(s, mine, access):
    await access.reconcile(s.ref())
    with pytest.raises(Forbidden):
        await mine.get(Ref("Secret", s.name, "demo-token"))


async def test_binding_that_an_earlier_release_left_behind_breaks_no_service(s, build, passes, access):
    """The role of a binding can never be changed; the release that made it had another name."""
    for name, labels in (("legato-operator", {}), ("other", OURS), (s.name, OURS), ("somebody-s", {})):
        await _bind(s, f"{name}-tokens", labels)
    await s.make(build())
    await access.reconcile(s.ref())
    assert passes.done == [s.name]
    assert await _bindings(s) == {f"{s.name}-tokens": f"{s.name}-tokens", "somebody-s-tokens": "gone-tokens"}


async def test_somebody_s_binding_of_that_name_is_left_and_reported(s, build, access):
    await _bind(s, f"{s.name}-tokens", {})
    await s.make(build())
    with pytest.raises(ClusterError, match=f"RoleBinding {s.name}-tokens is not the operator's own"):
        await access.reconcile(s.ref())
    assert await _bindings(s) == {f"{s.name}-tokens": "gone-tokens"}


async def test_rights_on_tokens_go_with_a_namespaces_last_service(s, build, passes, access):
    for name in ("demo", "last"):
        await s.make(build(), name)
        await access.reconcile(s.ref(name))
    passes.due = None
    for name, left in (("demo", {f"{s.name}-tokens"}), ("last", set())):
        await s.cluster.delete(s.ref(name))
        assert await access.reconcile(s.ref(name)) is None
        assert set(await _bindings(s)) == left
    passes.due = 1.0
    await s.make(build())
    await access.reconcile(s.ref())
    assert set(await _bindings(s)) == {f"{s.name}-tokens"}


async def test_bindings_of_namespaces_that_lost_their_services_unseen_are_removed(space, s, build, access):
    """As when finalizers were taken away while no operator ran."""
    async with space() as other:
        await other.make(build())
        for where in (s, other):
            await _bind(where, "other-tokens", OURS)
        await access.remove_unused((s.name, other.name))
        assert (await _bindings(s), set(await _bindings(other))) == ({}, {"other-tokens"})


async def _bind(s, name, labels):
    metadata = {"name": name, "namespace": s.name, "labels": labels}
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "gone-tokens"}
    item = {"apiVersion": f"{GROUP}/v1", "kind": "RoleBinding", "metadata": metadata, "roleRef": role}
    await s.cluster.apply(item, "legato-operator")


async def _bindings(s):
    found = (await s.cluster.list("RoleBinding", s.name)).items
    return {item["metadata"]["name"]: item["roleRef"]["name"] for item in found}
