"""The CRDs on a real API server: it refuses what the operator refuses, fills in the same defaults, and explains."""

import json
from pathlib import Path

import pytest
import yaml
from wrong_manifests import RESERVED, WRONG

from legato_operator.api import crd, parsing
from legato_operator.errors import ManifestError

CRDS = Path(__file__).parents[3] / "crds"
SERVICES = "/apis/serving.legato.dev/v1alpha1/namespaces/default/inferenceservices"
STRICT = "?fieldValidation=Strict&dryRun=All"
# Of release 0.1.0; whatever is above one is filled in, too, or required.
FILLED_IN = {
    f"{part}.{field}"
    for part, fields in {
        "engine": "blockSize chunkTokens dtype hangTimeout kvCacheDtype kvCacheMemory numerics "
        "outputReservation runner",
        "prefill": "parallelism.tensor resources",
        "decode": "parallelism.tensor resources",
        "gateway": "accessLog defaultDeadline replicas toolCallParser trustedProxies",
        "routing": "localPrefillBelowTokens whenPrefillUnavailable",
        "routing.weights": "kvCacheUtilization prefixCache stepTime",
        "scaling": "idleAfter maxDecodePerPrefill maxPrefillPerDecode mode scaleDownStabilization",
        "rollout": "autoRollback maxSurge maxUnavailable progressDeadline",
        "transfer": "checksum onFailure required transport",
        "drain": "deadline",
        "slo": "tpot ttft",
        "tracing": "samplingRatePerMillion",
    }.items()
    for field in fields.split()
}


def test_files_are_made_from_the_types():
    assert {file.name: file.read_text() for file in CRDS.glob("*.yaml")} == crd.files()


@pytest.mark.parametrize(("spec", "path", "_message"), WRONG, ids=[f"{i}-{case[1]}" for i, case in enumerate(WRONG)])
def test_wrong_spec_is_refused_by_the_api_server(api_server, build, spec, path, _message):
    if spec == {"engine": None}:
        pytest.skip("the API server drops a null where there is a default")
    status, answer = api_server.call("POST", SERVICES + STRICT, build(**spec))
    assert status in {400, 422}, answer
    assert path.rsplit(".", 1)[-1] in answer["message"] or path.rsplit(".", 1)[0] in answer["message"], answer


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


@pytest.mark.parametrize("name", ["1model", "a.b", "-a", "x" * 41])
def test_a_name_that_no_service_can_have_is_refused(api_server, build, name):
    item = build() | {"metadata": {"name": name}}
    with pytest.raises(ManifestError):
        parsing.read_service(item)
    status, answer = api_server.call("POST", SERVICES + STRICT, item)
    assert status == 422, answer
    assert len(name) < 41 or "at most 40 characters" in answer["message"]


@pytest.mark.parametrize(("template", "path"), RESERVED, ids=[path for _, path in RESERVED])
def test_reserved_parts_of_templates_are_refused(api_server, build, template, path):
    of_gateway = json.loads(json.dumps(template).replace("worker", "gateway"))
    for item in (build(decode={"template": template}), build(gateway={"template": of_gateway})):
        status, answer = api_server.call("POST", SERVICES + STRICT, item)
        assert status in {400, 422}, answer
        assert "template" in answer["message"]


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
    pool = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": "scaled"}}
    assert api_server.call("POST", pools, pool | {"spec": {"service": "demo", "role": "decode"}})[0] == 201
    merge = "application/merge-patch+json"
    status, scale = api_server.call("PATCH", f"{pools}/scaled/scale", {"spec": {"replicas": 3}}, merge)
    assert (status, scale["spec"]["replicas"]) == (200, 3)
    assert api_server.call("GET", f"{pools}/scaled")[1]["spec"]["replicas"] == 3
    status, answer = api_server.call("PATCH", f"{pools}/scaled", {"spec": {"role": "prefill"}}, merge)
    assert status == 422
    assert "cannot change its role" in answer["message"]
