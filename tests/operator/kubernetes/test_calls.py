"""How many calls a service costs the API server: their number is promised, whatever the machine has to do."""

import base64
import collections
import contextlib
import json
import re
import ssl

import certificates
from aiohttp import web

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


async def test_objects_that_were_rewritten_as_they_were_applied_are_not_applied_again(s, operator, build, tmp_path):
    """The API server writes 1000m as 1, and an admission webhook takes another image and adds a toleration."""
    amounts = {"cpu": "1000m", "memory": "1024Mi"}
    volume = {"name": "big", "emptyDir": {"sizeLimit": "1024Mi"}}
    gateway = {"resources": {"requests": amounts}, "template": {"spec": {"volumes": [volume]}}}
    async with _rewritten(s, certificates.make(tmp_path / "tls")):
        await s.serve(build(gateway=gateway))
        await s.wait(lambda: _has_all_events(s, operator))
        (container,) = (await s.cluster.get(s.ref("demo-gateway", "Deployment")))["spec"]["template"]["spec"][
            "containers"
        ]
        assert (container["image"], container["resources"]["requests"]["cpu"]) == ("mirror/gateway:test", "1")
        await s.wait(lambda: _calls_at_rest(s, operator), collections.Counter())


@contextlib.asynccontextmanager
async def _rewritten(s, files):
    """An admission webhook for Deployments of the namespace."""
    patch = [
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "mirror/gateway:test"},
        {"op": "add", "path": "/spec/template/spec/tolerations/-", "value": {"key": "spot", "operator": "Exists"}},
    ]
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()

    async def answer(request):
        review = await request.json()
        response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": encoded}
        return web.json_response({**review, "response": response})

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]}
    hook = {
        "name": "rewrites.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/",
            "caBundle": base64.b64encode(files.authority.read_bytes()).decode(),
        },
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": s.name}},
    }
    try:
        assert (await s.call("POST", path, {"metadata": {"name": s.name}, "webhooks": [hook]}))[0] == 201
        await s.wait(lambda: _is_rewritten(s))
        yield
    finally:
        await s.call("DELETE", f"{path}/{s.name}")
        await runner.cleanup()


async def _is_rewritten(s):
    """True once the API server knows the webhook."""
    pod = {"containers": [{"name": "x", "image": "x"}], "tolerations": [{"operator": "Exists"}]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    path = f"/apis/apps/v1/namespaces/{s.name}/deployments?dryRun=All"
    _, made = await s.call("POST", path, {"metadata": {"name": "x"}, "spec": spec})
    return made["spec"]["template"]["spec"]["containers"][0]["image"] != "x"


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
