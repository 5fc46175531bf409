"""A manifest that cannot be had, on a real API server: a restart forgets nothing, and the server's words are told."""

from legato_operator.cluster import Ref

TYPO = {"decode": {"template": {"spec": {"nodeSelektor": {"disk": "ssd"}}}}}
HUGE_PAGES = {"hugepages-2Mi": "4Mi"}  # which need a request of cpu or memory beside them
HUB = {"repo": "a/b", "revision": "0" * 40}
MINE = {"name": "mine", "image": "x", "imagePullPolicy": "Often"}
BAD_VALUES = {
    "unknown field": (TYPO, "spec.decode.template.spec.nodeSelektor: field not declared in schema"),
    "wrong type": ({"decode": {"template": {"spec": {"priority": "high"}}}}, "spec.decode.template.spec.priority: "),
    "wrong value": (
        {"prefill": {"template": {"spec": {"dnsPolicy": "Never"}}}},
        'spec.prefill.template.spec.dnsPolicy: Unsupported value: "Never"',
    ),
    "unknown field of gateways": (
        {"gateway": {"template": {"spec": {"nodeSelektor": {"disk": "ssd"}}}}},
        "spec.gateway.template.spec.nodeSelektor: field not declared in schema",
    ),
    "resources of gateways": (
        {"gateway": {"resources": {"requests": {"example.com/port": "500m"}}}},
        "spec.gateway.resources.limits[example.com/port]: ",
    ),
    "resources of the download": (
        {"model": {"source": {"huggingFace": HUB | {"resources": {"requests": HUGE_PAGES}}}}},
        "spec.model.source.huggingFace.resources.",
    ),
    "resources of the download beside a template": (
        {
            "model": {"source": {"huggingFace": HUB | {"resources": {"requests": HUGE_PAGES}}}},
            "decode": {"template": {"metadata": {"annotations": {"a": "b"}}}},
        },
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


async def test_deleted_pod_is_replaced_by_an_operator_that_knows_only_the_unusable_manifest(s, build):
    async with s.operator():
        await s.make(build())
        await s.wait(s.ready)
        await s.make(build(decode={"parallelism": {"tensor": 2}}))
        await s.wait(lambda: s.condition("Progressing"), ("False", "NotAvailable"))
    (before,) = (await s.pods("decode")).values()
    await s.cluster.delete(Ref("Pod", s.name, before["metadata"]["name"]))
    async with s.operator():
        await s.wait(lambda: _is_replaced(s, before["metadata"]["uid"]))
        await s.wait(s.ready)
        assert await s.condition("Progressing") == ("False", "NotAvailable")
        await s.make(build(gateway={"replicas": 2}))
        await s.wait(lambda: s.condition("Progressing"), ("False", "UpToDate"))


async def test_templates_that_no_pod_can_have_are_the_manifests_fault(s, operator, build, caplog):
    """In an edit, the last usable manifest stays; in a new service, nothing is started. The log has no traceback."""
    await s.make(build())
    await s.wait(s.ready)
    for number, (case, (edit, told)) in enumerate(BAD_VALUES.items()):
        new = f"new-{number}"
        for name in ("demo", new):
            await s.make(build(**edit), name)
            await s.wait(lambda name=name: s.is_current(name))
            await s.wait(lambda name=name: s.condition("Progressing", name), ("False", "Invalid"))
            assert (await s.message(name=name)).startswith(told), case
        assert await s.condition("Ready") == ("True", "AllReady")
        assert await s.condition("Ready", new) == ("False", "Invalid")
    (before,) = (await s.pods("decode")).values()
    await s.cluster.delete(Ref("Pod", s.name, before["metadata"]["name"]))
    await s.wait(lambda: _is_replaced(s, before["metadata"]["uid"]))
    await s.wait(s.ready)
    assert not [record for record in caplog.records if record.exc_info]


async def test_kept_spec_is_of_this_service_and_not_of_one_before_it(s, operator, build):
    await s.make(build())
    await s.wait(s.ready)
    (kept,) = await _kept(s)
    assert kept["data"] == (await s.cluster.get(s.ref()))["spec"]
    assert kept["revision"] == 1
    stranger = {key: kept[key] for key in ("apiVersion", "kind", "data")}
    labels = kept["metadata"]["labels"] | {"serving.legato.dev/service": "new"}
    owner = kept["metadata"]["ownerReferences"]
    metadata = {"name": "new-manifest-1", "namespace": s.name, "labels": labels, "ownerReferences": owner}
    metadata["annotations"] = kept["metadata"]["annotations"]
    await s.cluster.create(stranger | {"metadata": metadata, "revision": 1}, "test")
    await s.make(build(decode={"parallelism": {"tensor": 2}}), "new")
    await s.wait(lambda: s.condition("Ready", "new"), ("False", "NotAvailable"))
    assert set(await s.pods("decode")) == {"demo-decode-0"}


async def _is_replaced(s, uid):
    return uid not in {pod["metadata"]["uid"] for pod in (await s.pods("decode")).values()} and await s.pods("decode")


async def _kept(s):
    labels = {"serving.legato.dev/service": "demo", "serving.legato.dev/role": "manifest"}
    return (await s.cluster.list("ControllerRevision", s.name, labels)).items
