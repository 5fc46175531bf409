"""What the chart's accounts may do on a real API server, no more and no less; and it is enough for the operator."""

import asyncio
import dataclasses
import re

import control_plane
import pytest
import release

from legato_operator.kubernetes.handlers import LABELLED

SYSTEM, TENANT = "legato-system", "legato-tenant"
CLUSTER, NAMESPACED = f"{SYSTEM}:legato", f"{TENANT}:legato"
OWNED = {"get", "list", "watch", "create", "patch", "delete"}
SECRETS = {kind: {"get", "create", "patch", "delete"} for kind in ("secrets", "configmaps")}

# What every account may ask about itself.
EVERYBODY = {
    "selfsubjectreviews.authentication.k8s.io": {"create"},
    "selfsubjectaccessreviews.authorization.k8s.io": {"create"},
    "selfsubjectrulesreviews.authorization.k8s.io": {"create"},
}
OPERATOR = {
    "inferenceservices.serving.legato.dev": {"get", "list", "watch", "patch"},
    "inferenceservices.serving.legato.dev/status": {"patch", "update"},
    "workerpools.serving.legato.dev": OWNED,
    "workerpools.serving.legato.dev/status": {"patch", "update"},
    "pods": OWNED,
    "services": OWNED,
    "serviceaccounts": OWNED,
    "controllerrevisions.apps": OWNED,
    "deployments.apps": OWNED,
    "replicasets.apps": {"get", "list", "watch"},
    "poddisruptionbudgets.policy": OWNED,
    "networkpolicies.networking.k8s.io": OWNED,
    "ingresses.networking.k8s.io": OWNED - {"watch"},
    "httproutes.gateway.networking.k8s.io": OWNED - {"watch"},
    "roles.rbac.authorization.k8s.io": OWNED,
    "rolebindings.rbac.authorization.k8s.io": OWNED,
    "endpointslices.discovery.k8s.io": {"get", "list", "watch"},
    "persistentvolumeclaims": {"get"},
    "events.events.k8s.io": {"get", "create", "patch"},
    "leases.coordination.k8s.io": {"create"},
    "leases.coordination.k8s.io/legato-services": {"get", "update", "delete"},
}
LEADER = {"leases.coordination.k8s.io": {"create"}, "leases.coordination.k8s.io/legato-operator": {"get", "update"}}
BIND = {"clusterroles.rbac.authorization.k8s.io/legato-tokens": {"bind"}}

pytestmark = release.NEEDED


@pytest.fixture(scope="module")
def tools(programs):
    """An API server with two releases of one name: one for the cluster, one for the namespaces team and team-b."""
    with control_plane.running(programs) as api, control_plane.controllers(programs, api), release.tools(api) as found:
        for namespace in (SYSTEM, TENANT, "team", "team-b", "elsewhere"):
            found.kubectl("create", "namespace", namespace)
            found.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        found.install("legato", SYSTEM, "ignoreNamespaces={team,team-b}")
        found.install("legato", TENANT, "crds.install=false", "watchNamespaces={team,team-b}")
        yield found


@pytest.mark.parametrize(
    ("account", "namespace", "wanted"),
    [
        (CLUSTER, "elsewhere", OPERATOR | BIND),
        (CLUSTER, SYSTEM, OPERATOR | BIND | LEADER),
        (NAMESPACED, "team", OPERATOR | SECRETS),
        (NAMESPACED, "team-b", OPERATOR | SECRETS),
        (NAMESPACED, TENANT, LEADER),
        (NAMESPACED, "elsewhere", {}),
        (NAMESPACED, "kube-system", {}),
    ],
)
def test_the_operator_has_exactly_these_rights(tools, account, namespace, wanted):
    rights = tools.rights(account, namespace)
    assert {what: verbs for what, verbs in rights.items() if what not in EVERYBODY} == wanted
    assert not [what for what, verbs in rights.items() if "*" in what or "*" in verbs]


# What the exact rights of a namespace do not show: those everywhere ("*"), and that `kubectl` says the same.
TABLE = [
    # account, namespace ("*": all of them), verb, what, whether
    (CLUSTER, "*", "create", "pods", True),
    (CLUSTER, "*", "bind", "clusterroles/legato-tokens", True),
    (CLUSTER, SYSTEM, "update", "leases/legato-operator", True),
    (CLUSTER, "elsewhere", "update", "leases/legato-operator", False),
    (CLUSTER, "*", "get", "secrets", False),
    (CLUSTER, "*", "list", "secrets", False),
    (CLUSTER, "*", "bind", "clusterroles/cluster-admin", False),
    (CLUSTER, "*", "escalate", "clusterroles", False),
    (CLUSTER, "*", "create", "clusterrolebindings", False),
    (CLUSTER, "*", "impersonate", "users", False),
    (CLUSTER, "*", "create", "pods --subresource=exec", False),
    (CLUSTER, "*", "get", "nodes", False),
    (CLUSTER, "*", "*", "*", False),
    (NAMESPACED, "team", "get", "secrets", True),
    (NAMESPACED, "*", "list", "inferenceservices.serving.legato.dev", False),
    (NAMESPACED, "*", "bind", "clusterroles/legato-tokens", False),
]


def test_kubectl_auth_can_i(tools):
    """The whole table at once, so that a failure shows every row that is wrong."""
    said = [(*row[:4], tools.can(*row[:4])) for row in TABLE]
    assert said == TABLE


def test_a_role_with_more_rights_than_its_own_cannot_be_made(tools):
    """Who may write Roles could give itself anything, if the API server did not compare."""
    mine = tools.as_account(SYSTEM, "legato")
    role = {"metadata": {"name": "more"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}
    status, answer = mine.call("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/elsewhere/roles", role)
    assert (status, answer["reason"]) == (403, "Forbidden")


@pytest.mark.parametrize("namespace", [SYSTEM, TENANT])
def test_the_operators_pod_is_let_in_where_pods_have_to_be_restricted(tools, namespace):
    condition = "--for=jsonpath={.status.replicas}=1"
    tools.kubectl("wait", "deployment/legato", "--namespace", namespace, condition, "--timeout=60s")


async def test_a_whole_life_of_a_service_with_the_rights_of_one_namespace(tools, space, build):
    await _live(tools, space, build, TENANT, "team", refused=set())


async def test_a_whole_life_of_a_service_with_the_rights_on_the_cluster(tools, space, build):
    """A right that was just given is in force a moment later: until then it is asked for the token in vain."""
    await _live(tools, space, build, SYSTEM, None, refused={("get", "Secret")})


async def test_two_releases_of_a_cluster_leave_each_other_s_services_alone(tools, space, build):
    """One watches the whole cluster but for the other's namespaces."""
    everywhere = dataclasses.asdict(await asyncio.to_thread(tools.settings, "legato", SYSTEM)) | {"http_port": 0}
    async with space(tools.api) as s, space(tools.api, "team-b") as theirs, s.operator(**everywhere):
        await theirs.make(build(), "theirs")
        await s.make(build())
        await s.wait(s.ready)
        assert "status" not in await theirs.cluster.get(theirs.ref("theirs"))
        assert not await theirs.exists("Secret", "theirs-token")


async def _live(tools, space, build, system, name, refused):
    """The operator with a release's flags and account, from a service's creation over changes to its end."""
    settings = await asyncio.to_thread(tools.settings, "legato", system)
    account = await asyncio.to_thread(tools.as_account, system, "legato")
    async with space(tools.api, name) as s:
        given = dataclasses.asdict(settings) | {"http_port": 0}
        async with dataclasses.replace(s, api=account).operator(**given) as operator:
            await s.make(build(scaling={"prefill": {"max": 0}, "decode": {"max": 2}}))
            await s.wait(s.ready)
            await s.make(build(engine={"chunkTokens": 256}, drain={"deadline": "100ms"}))
            await s.wait(lambda: _has_settled(s, 2))
            await _check_accounts_of_service(tools, s)
            await s.cluster.delete(s.ref())
            await s.wait(s.is_gone)
            await s.wait(lambda: s.is_gone("Secret", "demo-token"))
            calls, told = await operator.calls(), (await operator.get("/metrics")).text
    assert {(verb, kind) for verb, kind, outcome in calls if outcome == "Forbidden"} <= refused
    assert {("create", "Event"), ("delete", "WorkerPool"), ("delete", "Secret")} <= {call[:2] for call in calls}
    assert set(re.findall(r'legato_operator_watch_events_total{kind="(\w+)"}', told)) >= set(LABELLED)


async def _check_accounts_of_service(tools, s):
    slices = {"endpointslices.discovery.k8s.io": {"get", "list", "watch"}}
    pools = {f"workerpools.serving.legato.dev/demo-{role}": {"get"} for role in ("prefill", "decode")}
    for account, wanted in (("demo-gateway", slices | pools), ("demo-worker", {}), ("default", {})):
        rights = await asyncio.to_thread(tools.rights, f"{s.name}:{account}", s.name)
        assert {what: verbs for what, verbs in rights.items() if what not in EVERYBODY} == wanted
    status, worker = await asyncio.to_thread(
        tools.api.call, "GET", f"/api/v1/namespaces/{s.name}/serviceaccounts/demo-worker"
    )
    assert (status, worker["automountServiceAccountToken"]) == (200, False)


async def _has_settled(s, pools):
    return await s.is_settled() and len((await s.cluster.get(s.ref()))["status"]["pools"]) == pools
