"""Exact rights of the chart's accounts on a real API server, and that they are enough for the operator."""

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
    "events.events.k8s.io": {"get", "list", "create", "patch"},
    "leases.coordination.k8s.io": {"create"},
    "leases.coordination.k8s.io/legato-services": {"get", "update", "delete"},
}
LEADER = {
    "leases.coordination.k8s.io": {"create"},
    "leases.coordination.k8s.io/legato-operator": {"get", "update"},
    "serviceaccounts/legato": {"get"},
}
BIND = {"clusterroles.rbac.authorization.k8s.io/legato-tokens": {"bind"}}

pytestmark = release.NEEDED


@pytest.fixture(scope="module")
def tools(programs):
    """An API server with two releases of one name: one for the cluster, one for the namespaces team and team-b."""
    with control_plane.controlled(programs, crds=()) as api, release.tools(api) as found:
        for namespace in (SYSTEM, TENANT, "team", "team-b", "elsewhere"):
            found.kubectl("create", "namespace", namespace)
            found.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        found.install("legato", SYSTEM, "ignoreNamespaces={team,team-b}")
        found.install("legato", TENANT, "crds.install=false", "watchNamespaces={team,team-b}")
        yield found


@pytest.mark.parametrize(
    ("account", "namespace", "rights"),
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
def test_the_operator_has_exactly_these_rights(tools, account, namespace, rights):
    assert _rights(tools, account, namespace) == rights


def _rights(tools, account, namespace):
    return {what: verbs for what, verbs in tools.rights(account, namespace).items() if EVERYBODY.get(what) != verbs}


@pytest.mark.parametrize("namespace", [SYSTEM, TENANT])
def test_the_operators_pod_is_let_in_where_pods_have_to_be_restricted(tools, namespace):
    condition = "--for=jsonpath={.status.replicas}=1"
    tools.kubectl("wait", "deployment/legato", "--namespace", namespace, condition, "--timeout=60s")


async def test_two_releases_of_a_cluster_leave_each_other_s_services_alone(tools, space, build):
    """One watches the whole cluster but for the other's namespaces."""
    everywhere = dataclasses.asdict(await asyncio.to_thread(tools.settings, "legato", SYSTEM)) | {"http_port": 0}
    async with space(tools.api) as s, space(tools.api, "team-b") as theirs, s.operator(**everywhere):
        await theirs.make(build(), "theirs")
        await s.serve(build())
        assert "status" not in await theirs.cluster.get(theirs.ref("theirs"))
        assert not await theirs.exists("Secret", "theirs-token")


# A right that was just given is in force a moment later: until then the cluster's operator asks for the token in vain.
@pytest.mark.parametrize(
    ("system", "name", "refused"),
    [(TENANT, "team", set()), (SYSTEM, None, {("get", "Secret")})],
    ids=["Role", "cluster"],
)
async def test_a_whole_life_of_a_service_with_the_rights_of_a_release(tools, space, build, system, name, refused):
    """The operator with its flags and account, from a service's creation over changes to its end."""
    settings = await asyncio.to_thread(tools.settings, "legato", system)
    account = await asyncio.to_thread(tools.as_account, system, "legato")
    async with space(tools.api, name) as s:
        given = dataclasses.asdict(settings) | {"http_port": 0}
        async with dataclasses.replace(s, api=account).operator(**given) as operator:
            await s.serve(build(scaling={"prefill": {"max": 0}, "decode": {"max": 2}}))
            await s.serve(build(engine={"chunkTokens": 256}, drain={"deadline": "100ms"}))
            assert len((await s.cluster.get(s.ref()))["status"]["pools"]) == 2
            await _check_accounts_of_service(tools, s)
            theirs = {"maxUnavailable": 1, "selector": {}}  # excludes the operator's field; it has no right to update
            await s.edit("PodDisruptionBudget", "demo-decode", lambda budget: budget.update(spec=theirs))
            await s.wait(lambda: _bounds(s), (0, None))
            await s.end()
            calls, metrics = await operator.calls(), (await operator.get("/metrics")).text
    assert {(verb, kind) for verb, kind, outcome in calls if outcome == "Forbidden"} <= refused
    assert {("create", "Event"), ("delete", "WorkerPool"), ("delete", "Secret")} <= {call[:2] for call in calls}
    assert set(re.findall(r'legato_operator_watch_events_total{kind="(\w+)"}', metrics)) >= set(LABELLED)


async def _bounds(s):
    spec = (await s.cluster.get(s.ref("demo-decode", "PodDisruptionBudget")))["spec"]
    return spec.get("minAvailable"), spec.get("maxUnavailable")


async def _check_accounts_of_service(tools, s):
    slices = {"endpointslices.discovery.k8s.io": {"get", "list", "watch"}}
    pools = {f"workerpools.serving.legato.dev/demo-{role}": {"get"} for role in ("prefill", "decode")}
    for account, rights in (("demo-gateway", slices | pools), ("demo-worker", {}), ("default", {})):
        assert await asyncio.to_thread(_rights, tools, f"{s.name}:{account}", s.name) == rights
    status, worker = await s.call("GET", "serviceaccounts/demo-worker")
    assert (status, worker["automountServiceAccountToken"]) == (200, False)
