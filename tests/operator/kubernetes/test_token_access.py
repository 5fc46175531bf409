"""An operator without rights on Secrets gives itself those of one namespace, and of no other."""

import asyncio

import pytest
from kubernetes.client import ApiClient

from legato_operator.cluster import Ref
from legato_operator.errors import Forbidden, ObjectNotFound
from legato_operator.kubernetes.api import KubernetesCluster
from legato_operator.kubernetes.token_access import Account, TokenAccess

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"


class Passes:
    def __init__(self):
        self.done = []

    async def reconcile(self, ref):
        self.done.append(ref.namespace)
        return 1.0

    async def record_failure(self, ref, error):
        raise error


def test_rights_on_tokens_come_with_a_namespaces_first_service(space, build):
    async def check():
        async with space() as s, space() as other:
            mine = await asyncio.to_thread(_account, s)
            passes = Passes()
            access = TokenAccess(passes, mine, f"{s.name}-tokens", Account(s.name, "operator"))
            await s.make(build())
            with pytest.raises(Forbidden):
                await mine.get(Ref("Secret", s.name, "demo-token"))
            await access.reconcile(s.ref())
            assert passes.done == [s.name]
            with pytest.raises(ObjectNotFound):
                await mine.get(Ref("Secret", s.name, "demo-token"))
            with pytest.raises(Forbidden):
                await mine.get(Ref("Secret", other.name, "demo-token"))
            mine.close()

    asyncio.run(check())


def test_service_that_is_gone_gives_no_rights(space):
    async def check():
        async with space() as s:
            mine = await asyncio.to_thread(_account, s)
            access = TokenAccess(Passes(), mine, f"{s.name}-tokens", Account(s.name, "operator"))
            await access.reconcile(s.ref())
            with pytest.raises(Forbidden):
                await mine.get(Ref("Secret", s.name, "demo-token"))
            mine.close()

    asyncio.run(check())


def _account(s):
    """The API server as an account sees it that may read services, and bind one role."""
    path = f"/api/v1/namespaces/{s.name}/serviceaccounts"
    tokens = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    few = [
        {"apiGroups": ["serving.legato.dev"], "resources": ["inferenceservices"], "verbs": ["get"]},
        {"apiGroups": [GROUP], "resources": ["rolebindings"], "verbs": ["create", "patch"]},
        {"apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": [f"{s.name}-tokens"], "verbs": ["bind"]},
    ]
    subject = {"kind": "ServiceAccount", "namespace": s.name, "name": "operator"}
    for where, item in (
        (path, {"metadata": {"name": "operator"}}),
        (f"{RBAC}/clusterroles", {"metadata": {"name": f"{s.name}-tokens"}, "rules": [tokens]}),
        (f"{RBAC}/clusterroles", {"metadata": {"name": s.name}, "rules": few}),
        (
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": s.name},
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": s.name},
                "subjects": [subject],
            },
        ),
    ):
        status, answer = s.api.call("POST", where, item)
        assert status < 300, answer
    _, answer = s.api.call("POST", f"{path}/operator/token", {"spec": {"expirationSeconds": 3600}})
    configuration = s.api.configuration()
    configuration.api_key = {"authorization": answer["status"]["token"]}
    return KubernetesCluster(ApiClient(configuration))
