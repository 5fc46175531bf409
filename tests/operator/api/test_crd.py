"""The CRDs on a real API server: it refuses what the operator refuses, fills in the same defaults, and explains."""

import json
from pathlib import Path

import pytest
import yaml
from wrong_manifests import WRONG

from legato_operator.api import crd, parsing
from legato_operator.errors import ManifestError
from legato_operator.planning import checks

CRDS = Path(__file__).parents[3] / "crds"
SERVICES = "/apis/serving.legato.dev/v1alpha1/namespaces/default/inferenceservices"
STRICT = "?fieldValidation=Strict&dryRun=All"
# Of release 0.1.0; whatever is above one is filled in, too, or required.
FILLED_IN = {
    f"{part}.{field}"
    for part, fields in {
        "model": ("maxLength",),
        "engine": (
            "blockSize",
            "chunkTokens",
            "dtype",
            "hangTimeout",
            "kvCacheDtype",
            "kvCacheMemory",
            "numerics",
            "outputReservation",
            "runner",
        ),
        "prefill": ("parallelism.tensor", "resources"),
        "decode": ("parallelism.tensor", "resources"),
        "gateway": ("accessLog", "defaultDeadline", "replicas", "toolCallParser", "trustedProxies"),
        "routing": (
            "localPrefillBelowTokens",
            "weights.kvCacheUtilization",
            "weights.prefixCache",
            "weights.stepTime",
            "whenPrefillUnavailable",
        ),
        "scaling": ("idleAfter", "maxDecodePerPrefill", "maxPrefillPerDecode", "mode", "scaleDownStabilization"),
        "rollout": ("autoRollback", "maxSurge", "maxUnavailable", "progressDeadline"),
        "transfer": ("checksum", "onFailure", "required", "transport"),
        "drain": ("deadline",),
        "slo": ("tpot", "ttft"),
        "tracing": ("samplingRatePerMillion",),
    }.items()
    for field in fields
}
OPERATOR_ONLY = {"spec.scaling.gpuBudget"}  # quantities are added up


def test_files_are_made_from_the_types():
    """`scripts/crds` writes them again."""
    assert {file.name: file.read_text() for file in CRDS.glob("*.yaml")} == crd.files()


@pytest.mark.parametrize(("spec", "path", "_message"), WRONG, ids=[f"{i}-{case[1]}" for i, case in enumerate(WRONG)])
def test_wrong_spec_is_refused_by_the_api_server(api_server, build, spec, path, _message):
    if path in OPERATOR_ONLY:
        pytest.skip("only the operator can know")
    if spec == {"engine": None}:
        pytest.skip("the API server drops a null where there is a default")
    status, answer = api_server.call("POST", SERVICES + STRICT, build(**spec))
    assert status in {400, 422}, answer
    assert path.rsplit(".", 1)[-1] in answer["message"] or path.rsplit(".", 1)[0] in answer["message"], answer


def test_defaults_are_those_of_the_types(api_server, build):
    """What the server stores means exactly what the operator would have understood without it."""
    status, stored = api_server.call("POST", SERVICES + STRICT, build())
    assert status == 201, stored
    assert parsing.service_from_object(stored).spec == parsing.read_service(build()).spec
    assert stored["spec"]["gateway"]["defaultDeadline"] == "10m"
    assert stored["spec"]["engine"]["kvCacheMemory"] == "512Mi"


def filled_in(schema, path=""):
    """Fields without fields of their own that a manifest gets which names none that it may leave out."""
    for name, field in schema.get("properties", {}).items():
        if "default" in field or name in schema.get("required", ()):
            below = list(filled_in(field, f"{path}{name}."))
            yield from below or ([f"{path}{name}"] if "default" in field else ())


def test_nothing_is_filled_in_that_is_newer_than_the_last_release():
    """An operator of the release before runs on until it is replaced, and tells of what it does not know."""
    (version,) = yaml.safe_load((CRDS / "inferenceservices.yaml").read_text())["spec"]["versions"]
    assert set(filled_in(version["schema"]["openAPIV3Schema"]["properties"]["spec"])) == FILLED_IN


def test_fields_that_are_new_are_not_filled_in(api_server, build):
    """Nor in parts of a manifest that it does name."""
    hub = {"repo": "a/b", "revision": "0" * 40}
    status, stored = api_server.call("POST", SERVICES + STRICT, build(model={"source": {"huggingFace": hub}}))
    assert status == 201, stored
    assert not stored["spec"]["gateway"].keys() & {"resources", "template"}
    assert stored["spec"]["model"]["source"]["huggingFace"] == hub


@pytest.mark.parametrize(
    "spec",
    [
        {"scaling": {"prefill": {"max": 0}}},
        {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 0}, "decode": {"replicas": 2}},
        {"decode": {"resources": {"requests": {"cpu": 2, "memory": "2Gi"}}}},
        {"decode": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}},
        {"gateway": {"template": {"spec": {"nodeSelector": {"a": "b"}}}, "resources": {"limits": {"cpu": 1}}}},
        {"gateway": {"tenantTokensPerMinute": {"*": 6000}}},
        {"engine": {"kvCacheMemory": "0.5Gi"}, "drain": {"deadline": "168h"}},
        {"engine": {"kvCacheMemory": "1Pi"}, "drain": {"deadline": "30s1m"}},
        {"engine": {"kvCacheMemory": "10000000.5"}, "slo": {"tpot": "1ms"}},
        {"engine": {"kvCacheMemory": "Auto"}},
        {"rollout": {"maxSurge": "25%", "maxUnavailable": "100%"}},
        {"rollout": {"maxSurge": 10_000, "maxUnavailable": "0%"}},
    ],
)
def test_accepted_specs_mean_the_same_on_the_server(api_server, build, spec):
    status, stored = api_server.call("POST", SERVICES + STRICT, build(**spec))
    assert status == 201, stored
    assert parsing.service_from_object(stored).spec == parsing.read_service(build(**spec)).spec


def test_a_long_name_is_refused(api_server, build):
    item = build()
    item["metadata"]["name"] = "x" * 41
    status, answer = api_server.call("POST", SERVICES + STRICT, item)
    assert status == 422
    assert "at most 40 characters" in answer["message"]


@pytest.mark.parametrize("name", ["1model", "a.b", "-a"])
def test_a_name_that_no_service_can_have_is_refused(api_server, build, name):
    item = build() | {"metadata": {"name": name}}
    with pytest.raises(ManifestError):
        parsing.read_service(item)
    status, answer = api_server.call("POST", SERVICES + STRICT, item)
    assert status == 422, answer


def test_path_of_a_node_is_absolute(api_server, build):
    """Processes of one machine may be given one from where they were started."""
    item = build(model={"source": {"path": "models/a"}})
    assert parsing.read_service(item)
    status, answer = api_server.call("POST", SERVICES + STRICT, item)
    assert status == 422
    assert "spec.model.source.path" in answer["message"]
    assert "must be absolute" in answer["message"]


@pytest.mark.parametrize(
    "image",
    [
        "models",
        "registry.example:5000/team/a-b__c.d:v1.2_x",
        "Host/a",
        "a/b@sha256:" + "0" * 64,
        "a:1@sha256:" + "f" * 64,
    ],
)
def test_names_of_images(api_server, build, image):
    item = build(model={"source": {"image": image}})
    assert parsing.read_service(item).spec.model.source.image == image
    assert api_server.call("POST", SERVICES + STRICT, item)[0] == 201


@pytest.mark.parametrize(
    "template",
    [
        {"kind": "Pod"},
        {"metadata": {"name": "x"}},
        {"metadata": {"labels": {"a": 1}}},
        {"metadata": {"labels": {"serving.legato.dev/role": "x"}}},
        {"metadata": {"annotations": {"app.kubernetes.io/name": "x"}}},
        *({"spec": {name: "x"}} for name in ("restartPolicy", "hostname", "subdomain")),
        *({"spec": {name: 1}} for name in ("terminationGracePeriodSeconds", "activeDeadlineSeconds")),
        *({"spec": {name: [{"image": "x"}]}} for name in ("containers", "initContainers", "volumes")),
        *({"spec": {"containers": [{"name": "worker", name: ["x"]}]}} for name in ("args", "command")),
        {"spec": {"containers": [{"name": "worker", "ports": [{"containerPort": 1}]}]}},
        {"spec": {"containers": [{"name": "worker", "livenessProbe": {}}]}},
        {"spec": {"containers": [{"name": "worker", "env": [{"name": "LEGATO_TOKEN", "value": "x"}]}]}},
    ],
)
def test_what_the_operator_relies_on_is_refused_in_templates(api_server, build, template):
    """By the operator, too, of an object that came in before."""
    of_gateway = json.loads(json.dumps(template).replace("worker", "gateway"))
    for item in (build(decode={"template": template}), build(gateway={"template": of_gateway})):
        assert checks.unavailable(parsing.read_service(item).spec, in_containers=True)
        status, answer = api_server.call("POST", SERVICES + STRICT, item)
        assert status in {400, 422}, answer
        assert "template" in answer["message"]


def test_whatever_else_a_pod_has_is_stored_as_it_is(api_server, build):
    spec = {
        "nodeSelector": {"a": "b"},
        "hostNetwork": True,
        "containers": [
            {"name": "worker", "image": "x", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]},
            {"name": "gateway-beside", "args": ["a"], "ports": [{"containerPort": 1}], "env": [{"name": "LEGATO_X"}]},
        ],
        "volumes": [{"name": "a", "emptyDir": {"medium": "Memory"}}],
    }
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {"x/y": "z"}}, "spec": spec}
    for part, other in (("decode", "gateway"), ("gateway", "decode")):
        status, stored = api_server.call("POST", SERVICES + STRICT, build(**{part: {"template": template}}))
        assert status == 201, stored
        assert stored["spec"][part]["template"] == template
        assert "template" not in stored["spec"][other]


def test_every_field_explains_itself():
    def undescribed(schema, path):
        for name, child in schema.get("properties", {}).items():
            if name not in {"apiVersion", "kind", "metadata"}:
                yield from [] if child.get("description") else [f"{path}.{name}"]
                yield from undescribed(child, f"{path}.{name}")

    for made in (crd.inference_service(), crd.worker_pool()):
        assert not list(undescribed(made["spec"]["versions"][0]["schema"]["openAPIV3Schema"], ""))


def test_a_pool_is_scaled_and_keeps_its_role(api_server):
    pools = "/apis/serving.legato.dev/v1alpha1/namespaces/default/workerpools"
    pool = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": "scaled"},
        "spec": {"service": "demo", "role": "decode"},
    }
    assert api_server.call("POST", pools, pool)[0] == 201
    merge = "application/merge-patch+json"
    status, scale = api_server.call("PATCH", f"{pools}/scaled/scale", {"spec": {"replicas": 3}}, merge)
    assert (status, scale["spec"]["replicas"]) == (200, 3)
    assert api_server.call("GET", f"{pools}/scaled")[1]["spec"]["replicas"] == 3
    status, answer = api_server.call("PATCH", f"{pools}/scaled", {"spec": {"role": "prefill"}}, merge)
    assert status == 422
    assert "cannot change its role" in answer["message"]
