"""A manifest that cannot be had, on a real API server: a restart forgets nothing, the server's words are reported."""

import pytest

from legato_operator.errors import Invalid

TYPO = {"template": {"spec": {"nodeSelektor": {"disk": "ssd"}}}}
HUGE_PAGES = {"hugepages-2Mi": "4Mi"}  # which need a request of cpu or memory beside them
HUB = {"repo": "a/b", "revision": "0" * 40}
DOWNLOAD = {"source": {"huggingFace": HUB | {"resources": {"requests": HUGE_PAGES}}}}
TWICE = {"name": "sidecar", "image": "x", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}
MINE = {"name": "mine", "image": "x", "imagePullPolicy": "Often"}
BAD_VALUES = {
    "unknown field": ({"decode": TYPO}, "spec.decode.template.spec.nodeSelektor: field not declared in schema"),
    "wrong type": ({"decode": {"template": {"spec": {"priority": "high"}}}}, "spec.decode.template.spec.priority: "),
    "wrong value": (
        {"prefill": {"template": {"spec": {"dnsPolicy": "Never"}}}},
        'spec.prefill.template.spec.dnsPolicy: Unsupported value: "Never"',
    ),
    "unknown field of gateways": (
        {"gateway": TYPO},
        "spec.gateway.template.spec.nodeSelektor: field not declared in schema",
    ),
    "resources of gateways": (
        {"gateway": {"resources": {"requests": {"example.com/port": "500m"}}}},
        "spec.gateway.resources.limits[example.com/port]: ",
    ),
    "a key twice in gateways": (
        {"gateway": {"template": {"spec": {"containers": [TWICE]}}}},
        'spec.gateway.template.spec.containers[name="sidecar"].env: duplicate entries for key [name="A"]',
    ),
    "resources of the download": ({"model": DOWNLOAD}, "spec.model.source.huggingFace.resources."),
    "resources of the download beside a template": (
        {"model": DOWNLOAD, "decode": {"template": {"metadata": {"annotations": {"a": "b"}}}}},
        "spec.model.source.huggingFace.resources.",
    ),
    "a container of their own behind downloads": (
        {
            "model": {
                "source": {"builtin": "smollm2-135m-instruct"},
                "adapters": [{"name": "sql", "source": {"huggingFace": HUB}}],
            },
            "decode": {"template": {"spec": {"initContainers": [MINE]}}},
        },
        'spec.decode.template.spec.initContainers[0].imagePullPolicy: Unsupported value: "Often"',
    ),
}
PERMISSIVE = {"secret": "x"}
STRICT = {"secret": "x", "mode": "Strict"}


async def test_templates_that_no_pod_can_have_are_the_manifests_fault(s, operator, build, caplog):
    """In an edit, the last usable manifest stays; in a new service, nothing is started. The log has no traceback."""
    await s.serve(build())
    for number, (case, (edit, message)) in enumerate(BAD_VALUES.items()):
        new = f"new-{number}"
        for name in ("demo", new):
            await s.make(build(**edit), name)
            await s.wait(lambda name=name: s.is_current(name))
            await s.wait(lambda name=name: s.condition("Progressing", name), ("False", "Invalid"))
            assert (await s.message(name=name)).startswith(message), case
        assert await s.condition("Ready") == ("True", "AllReady")
        assert await s.condition("Ready", new) == ("False", "Invalid")
    before = await s.uids("decode")
    await s.cluster.delete(s.ref("demo-decode-0", "Pod"))
    await s.wait(lambda: s.is_replaced(before))
    # Tasks of an earlier test's operator may be collected meanwhile, which asyncio reports.
    assert not [record for record in caplog.records if record.exc_info and record.name != "asyncio"]


async def test_templates_of_workers_are_accepted_as_pods_are(s, operator, build):
    """A POST takes lists with a key twice, which an apply refuses."""
    claims = [{"name": "gpus", "request": "one"}, {"name": "gpus", "request": "two"}]
    template = {
        "resourceClaims": [{"name": "gpus", "resourceClaimName": "gpus"}],
        "containers": [TWICE, {"name": "worker", "resources": {"claims": claims}}],
    }
    await s.serve(build(decode={"template": {"spec": template}}))
    (pod,) = (await s.pods("decode")).values()
    worker, sidecar = (pod["spec"]["containers"][index] for index in (0, 1))
    assert (worker["resources"]["claims"], sidecar["env"]) == (claims, TWICE["env"])


async def test_strict_tls_is_reached_and_left_by_way_of_permissive(s, build):
    """Pods with and without TLS could not reach each other while one takes the place of the other."""
    await s.make(build())
    for refused, *allowed in ((STRICT, PERMISSIVE, STRICT, STRICT | {"secret": "y"}), (None, PERMISSIVE, None)):
        with pytest.raises(Invalid, match="by way of mode Permissive"):
            await _set_tls(s, refused)
        for tls in allowed:
            await _set_tls(s, tls)
    await s.make(build(internalTLS=STRICT), "sealed")


async def _set_tls(s, tls):
    def change(service):
        service["spec"].pop("internalTLS", None)
        service["spec"] |= {"internalTLS": tls} if tls else {}

    await s.edit("InferenceService", "demo", change)
