"""Pods on Kubernetes: how the model comes in, what a user's template may add, and what stays ours."""

import dataclasses

import pytest
import yaml
from wrong_manifests import RESERVED

from legato_operator.api import parsing
from legato_operator.manifests import placement
from legato_operator.manifests.pods import gateway, worker
from legato_operator.planning import checks

PLACEMENT = placement.kubernetes(placement.Containers("engine:1", "gateway:1", pull_secrets=("registry",)))
REVISION = "a" * 40
CLAIMED = {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}
ONE_GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def _service(item):
    return parsing.read_service(item)


def _worker(item, pool="decode"):
    return worker.template(_service(item), pool, PLACEMENT)


def _main(template):
    return template["spec"]["containers"][0]


def _flag(container, name):
    return container["args"][container["args"].index(name) + 1]


def _with_source(build, **source):
    return build(model={"source": source})


@pytest.mark.parametrize(
    ("tracing", "endpoint"), [({}, "http://shared:4318"), ({"endpoint": "http://own:4318"}, "http://own:4318")]
)
def test_a_shared_collector_gets_the_traces_of_services_that_name_none(build, tracing, endpoint):
    placed = dataclasses.replace(PLACEMENT, tracing_endpoint="http://shared:4318")
    service = _service(build(tracing={**tracing, "samplingRatePerMillion": 0}))
    for made in (worker.template(service, "decode", placed), gateway.template(service, placed)):
        variables = {each["name"]: each.get("value") for each in _main(made)["env"]}
        assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == endpoint
    assert variables["OTEL_TRACES_SAMPLER_ARG"] == "0.000000"
    plain = _main(worker.template(_service(build()), "decode", PLACEMENT))["env"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in {each["name"] for each in plain}


@pytest.mark.parametrize(("least", "holds"), [(0, True), (1, False)])
def test_gateways_hold_requests_without_ever_having_seen_a_worker_where_there_may_be_none(build, least, holds):
    item = build(scaling={"prefill": {"min": 0}, "decode": {"min": least}})
    assert ("--hold-without-workers" in _main(gateway.template(_service(item), PLACEMENT))["args"]) is holds


PART = "m-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("source", "argument", "volume", "at"),
    [
        ({"builtin": "smollm2-135m-instruct"}, "builtin:smollm2-135m-instruct", None, None),
        ({"pvc": {"claim": "c"}}, "/model", CLAIMED, "/model"),
        ({"pvc": {"claim": "c", "path": "/a/b.gguf"}}, "/model/a/b.gguf", CLAIMED, "/model"),
        ({"path": "/data/m.gguf"}, "/model/m.gguf", {"hostPath": {"path": "/data/m.gguf"}}, "/model/m.gguf"),
        ({"path": f"/data/{PART}"}, f"/model/{PART}", {"hostPath": {"path": "/data"}}, "/model"),
        ({"path": "/data/m/"}, "/model/m", {"hostPath": {"path": "/data/m"}}, "/model/m"),
        ({"image": "i"}, "/model", {"image": {"reference": "i", "pullPolicy": "IfNotPresent"}}, "/model"),
    ],
)
def test_worker_and_gateway_get_the_model_by_the_same_path(build, source, argument, volume, at):
    item = _with_source(build, **source)
    for template in (_worker(item), gateway.template(_service(item), PLACEMENT)):
        assert _flag(_main(template), "--model") == argument
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        mounts = {m["name"]: m for m in _main(template)["volumeMounts"]}
        assert volumes.get("model") == (None if volume is None else {"name": "model", **volume})
        assert mounts.get("model") == (None if at is None else {"name": "model", "mountPath": at, "readOnly": True})
        assert "initContainers" not in template["spec"]


def test_downloads_stay_on_the_node_where_that_is_asked_for(build):
    """In a folder that is there: one that a kubelet makes is root's."""
    found = {"repo": "owner/name", "revision": REVISION}
    kept = {"name": "cache", "hostPath": {"path": "/var/lib/legato", "type": "Directory"}}
    for cache, volume in ({}, {"name": "cache", "emptyDir": {}}), ({"nodeCache": "/var/lib/legato"}, kept):
        item = _with_source(build, huggingFace={**found, **cache})
        for template in _worker(item), gateway.template(_service(item), PLACEMENT):
            assert volume in template["spec"]["volumes"]
            for each in (_main(template), *template["spec"]["initContainers"]):
                assert {"name": "cache", "mountPath": "/cache"} in each["volumeMounts"]


def test_one_gguf_file_of_a_repository_is_downloaded_and_gateways_get_its_header(build):
    file = "Q4_K_M/m-00001-of-00002.gguf"
    item = _with_source(build, huggingFace={"repo": "owner/name", "revision": REVISION, "file": file})
    for template, header in (_worker(item), []), (gateway.template(_service(item), PLACEMENT), ["--header-only"]):
        assert _flag(_main(template), "--model") == f"/cache/hub/owner--name/{REVISION}/{file}"
        arguments = ["prepare", "--hugging-face", "owner/name", "--revision", REVISION, "--file", file, *header]
        assert [each["args"] for each in template["spec"]["initContainers"]] == [arguments]


@pytest.mark.parametrize(
    ("spec", "flags"),
    [
        ({}, ["--slo-ttft=9s", "--slo-tpot=50ms"]),
        ({"routing": {"whenPrefillBusy": "Wait"}}, ["--when-prefill-busy=Wait", "--slo-tpot=50ms"]),
        ({"scaling": {"prefill": {"max": 0}}}, ["--slo-tpot=50ms"]),
        (
            {"scaling": {"prefill": {"max": 0}}, "gateway": {"whenLate": "Refuse"}},
            ["--when-late=Refuse", "--slo-ttft=9s", "--slo-tpot=50ms"],
        ),
        ({"scaling": {"prefill": {"max": 0}, "decode": {"max": 1}}}, ["--slo-tpot=50ms"]),
        ({"scaling": {"prefill": {"max": 0}}, "gateway": {"image": "legato/gateway:old"}}, []),
        ({"gateway": {"image": "legato/gateway:old"}}, ["--slo-ttft=9s", "--slo-tpot=50ms"]),
        ({"scaling": {"decode": {"max": 1}}}, ["--slo-ttft=9s", "--slo-tpot=50ms"]),
    ],
)
def test_gateways_hear_of_objectives_where_decode_workers_may_help_prefill_workers_or_each_other(build, spec, flags):
    """The pools' bounds do not matter, as a change would replace the gateways. Gateways with an image of the version
    before do not know these flags, and start without them if decode workers only help each other."""
    container = _main(gateway.template(_service(build(slo={"ttft": "9s", "tpot": "50ms"}, **spec)), PLACEMENT))
    assert [
        each for each in container["args"] if each.startswith(("--slo", "--when-late", "--when-prefill-busy"))
    ] == flags


LOST = "node.kubernetes.io/unreachable"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"key": LOST, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}, [600]),
        ({"key": LOST, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}, [5]),
        ({"key": LOST, "operator": "Exists"}, [None]),
        ({"key": LOST, "effect": "NoExecute"}, [None]),
        ({"key": LOST, "operator": "Equal", "value": "x", "effect": "NoExecute"}, [30, None]),
        ({"key": LOST, "operator": "Exists", "effect": "NoSchedule"}, [30, None]),
        ({"operator": "Exists", "effect": "NoExecute"}, [30]),
        ({"key": "spot", "operator": "Exists"}, [30]),
    ],
)
def test_toleration_in_a_template_replaces_ours_of_the_same_taint(build, given, seconds):
    """Kubernetes takes the shorter time of two for one taint: next to the operator's, none could be longer."""
    template = {"template": {"spec": {"tolerations": [given]}}}
    item = build(decode=template, gateway=template)
    for made in (_worker(item), gateway.template(_service(item), PLACEMENT)):
        tolerations = made["spec"]["tolerations"]
        assert [each.get("tolerationSeconds") for each in tolerations if each.get("key") == LOST] == seconds
        assert tolerations[0] == _tolerated("not-ready")
        assert tolerations[-1] == given


def _tolerated(state):
    key = f"node.kubernetes.io/{state}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}


@pytest.mark.parametrize(("template", "path"), RESERVED, ids=[path for _, path in RESERVED])
def test_what_the_operator_relies_on_cannot_be_replaced(build, template, path):
    """It is refused by its path, not silently left out."""
    of_gateway = yaml.safe_load(yaml.safe_dump(template).replace("worker", "gateway"))
    for part, given, name in (("decode", template, "worker"), ("gateway", of_gateway, "gateway")):
        refused = checks.unavailable(_service(build(**{part: {"template": given}})).spec, in_containers=True)
        assert [where for where, _ in refused] == [f"spec.{part}.template.{path.replace('worker', name)}"]


def test_containers_of_a_template_are_reserved_by_the_name_of_our_own(build):
    beside = {"spec": {"containers": [{"name": "gateway", "args": []}]}}
    assert checks.unavailable(_service(build(decode={"template": beside})).spec, in_containers=True) == []


def test_constraints_of_a_template_replace_the_spread_over_nodes_even_if_there_are_none(build):
    """The API server refuses two constraints for one topology."""
    template = {"template": {"spec": {"topologySpreadConstraints": []}}}
    item = build(decode=template, gateway=template)
    for made in (_worker(item), gateway.template(_service(item), PLACEMENT)):
        assert made["spec"]["topologySpreadConstraints"] == []


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, {"requests": {"cpu": "100m", "memory": "256Mi"}}),
        ({"requests": {"cpu": 2}}, {"requests": {"cpu": "2", "memory": "256Mi"}}),
        ({"limits": {"memory": "128Mi"}}, {"requests": {"cpu": "100m"}, "limits": {"memory": "128Mi"}}),
        (
            {"requests": {"cpu": 1, "memory": "1Gi", "a.b/c": 1}},
            {"requests": {"cpu": "1", "memory": "1Gi", "a.b/c": "1"}, "limits": {"a.b/c": "1"}},
        ),
    ],
)
def test_gateways_request_something_and_no_more_than_their_limit(build, given, made):
    """Kubernetes itself requests a resource that is limited and not requested."""
    item = build(gateway={"resources": given})
    assert _main(gateway.template(_service(item), PLACEMENT))["resources"] == made


def test_gpus_have_an_effect_on_processes_where_there_are_some(build):
    read = _service(build(prefill=ONE_GPU, decode=ONE_GPU)).spec
    paths = ["spec.decode.resources", "spec.prefill.resources"]
    assert [path for path, _ in checks.without_effect(read, has_gpus=False)] == paths
    assert checks.without_effect(read, has_gpus=True) == []


@pytest.mark.parametrize(("gpus", "refused"), [((), False), (("0",), True)])
def test_processes_that_hand_over_compute_on_gpus_all_or_none(build, gpus, refused):
    """Without a GPU they all compute on the CPU."""
    here = placement.local(("legato",), gpus=gpus)
    assert (checks.refusal(_service(build(decode=ONE_GPU)).spec, 1, here) is not None) is refused
    assert checks.refusal(_service(build(prefill=ONE_GPU, decode=ONE_GPU)).spec, 1, here) is None


def test_memory_that_pods_do_not_share_is_no_transport(build):
    read = _service(build(transfer={"transport": "SharedMemory"})).spec
    assert [path for path, _ in checks.unavailable(read, in_containers=True)] == ["spec.transfer.transport"]
    assert checks.unavailable(read) == []
