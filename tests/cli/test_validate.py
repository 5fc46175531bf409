"""`legato validate` says offline what the API server and the operator would say, and ends with 1 for it."""

import io
import json
from pathlib import Path

import local_services
import pytest
import yaml
from local_services import manifest
from wrong_manifests import WRONG

from legato_cli import gpus

ROOT = Path(__file__).parents[2]
SERVICE = manifest("chat")
OTHER = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"a": "b"}}
KSERVE = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "theirs"}}


@pytest.fixture
def validate(tmp_path, legato):
    """Exit code, output and errors for documents that are written into one file."""

    def run(*documents, flags=()):
        path = tmp_path / "m.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        code, *texts = legato("validate", path, *flags)
        return code, *(text.replace(str(path), "m.yaml") for text in texts)

    return run


def _with(**spec):
    return manifest("chat", **spec)


def test_a_valid_manifest_is_named_and_ends_with_0(validate):
    assert validate(SERVICE) == (0, "m.yaml: chat: valid\n", "")


def test_what_has_no_effect_on_one_machine_is_told_and_harms_nothing(validate):
    item = _with(gateway={"ingress": {"hosts": ["a.example"]}, "resources": {"limits": {"cpu": 1}}})
    code, told, _ = validate(item, flags=("--local",))
    assert code == 0
    valid, *rest = told.splitlines()
    assert valid == "m.yaml: chat: valid"
    assert [line.split(": ")[2] for line in rest] == ["spec.gateway.resources", "spec.gateway.ingress"]
    assert all("has no effect here" in line for line in rest)
    assert validate(item) == (0, "m.yaml: chat: valid\n", "")
    (found,) = json.loads(validate(item, flags=("--local", "-o", "json"))[1])
    assert [entry["path"] for entry in found["withoutEffect"]] == ["spec.gateway.resources", "spec.gateway.ingress"]


@pytest.mark.parametrize("flags", [(), ("--local",)])
def test_objectives_that_paced_workers_miss_are_told_and_harm_nothing(validate, flags):
    paced = {"runner": "Paced", "profile": "h200-llama-3.1-8b-bf16"}
    item = _with(engine=paced, slo={"ttft": "1ms", "tpot": "1ms"})
    code, told, _ = validate(item, flags=flags)
    assert code == 0
    valid, *rest = told.splitlines()
    assert valid == "m.yaml: chat: valid"
    assert [line.split(": ")[2] for line in rest] == ["spec.slo.ttft", "spec.slo.tpot"]
    assert "a decode step of one sequence takes 6.48 ms" in rest[1]
    (found,) = json.loads(validate(item, flags=(*flags, "-o", "json"))[1])
    assert [entry["path"] for entry in found["unmetObjectives"]] == ["spec.slo.ttft", "spec.slo.tpot"]
    assert validate(_with(engine=paced), flags=flags) == (0, "m.yaml: chat: valid\n", "")


def test_how_fast_other_workers_are_is_not_known(validate):
    elsewhere = {"runner": "Paced", "profile": "/profiles/mine.json"}
    for engine in ({}, elsewhere):
        assert validate(_with(engine=engine, slo={"tpot": "1ms"})) == (0, "m.yaml: chat: valid\n", "")


def test_whether_gpus_have_an_effect_depends_on_this_machine(validate, monkeypatch):
    asked = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    for found, told in ((), 1), (("0",), 0):
        monkeypatch.setattr(gpus, "visible", lambda _, found=found: found)
        code, said, _ = validate(_with(prefill=asked, decode=asked), flags=("--local",))
        assert (code, said.count("m.yaml: chat: spec.decode.resources: nvidia.com/gpu has no effect here")) == (0, told)
        code, _, said = validate(_with(decode=asked), flags=("--local",))
        assert (code, "spec.prefill.resources: must request GPUs" in said) == ((1, True) if found else (0, False))


def test_the_examples_are_valid(legato):
    files = [*(ROOT / "examples").rglob("inferenceservice*.yaml")]
    assert files
    assert legato("validate", *files).code == 0


def test_every_problem_is_given_with_its_path(validate):
    """Those of the CRD's schema and of its CEL rules."""
    code, _, said = validate(*(manifest(f"wrong-{number}", **spec) for number, (spec, _, _) in enumerate(WRONG)))
    assert code == 1
    for number, (_, path, message) in enumerate(WRONG):
        begin = f"m.yaml: wrong-{number}: {path}: "
        assert any(line.startswith(begin) and message in line for line in said.splitlines()), (path, message)


def test_all_problems_of_all_documents_are_told_and_other_objects_left_out(validate):
    wrong = _with(decode={"replica": 2}, engine={"blockSize": 24}) | {"metadata": {"name": "wrong"}}
    code, told, said = validate(OTHER, wrong, KSERVE, SERVICE)
    assert (code, told) == (1, "m.yaml: chat: valid\n")
    assert [line.split(": ")[1:3] for line in said.splitlines()] == [
        ["wrong", "spec.engine.blockSize"],
        ["wrong", "spec.decode.replica"],
    ]


@pytest.mark.parametrize(
    ("spec", "path", "where"),
    [
        ({"engine": {"numerics": "Invariant"}}, "spec.engine.numerics", "both"),
        ({"model": {"source": {"path": "models/mine"}}}, "spec.model.source.path", "Kubernetes"),
        ({"decode": {"template": {"spec": {"restartPolicy": "Never"}}}}, "spec.decode.template.spec.restartPolicy", ""),
        ({"gateway": {"replicas": 2}}, "spec.gateway.replicas", "local"),
    ],
)
def test_what_the_operator_refuses_depends_on_where_it_runs(validate, spec, path, where):
    on_kubernetes, _, said = validate(_with(**spec))
    assert (on_kubernetes, path in said) == ((0, False) if where == "local" else (1, True))
    if where:
        locally, _, said = validate(_with(**spec), flags=["--local"])
        assert (locally, path in said) == ((0, False) if where == "Kubernetes" else (1, True))


def test_what_kubectl_prints_is_valid(validate):
    of_server = {"uid": "u", "resourceVersion": "1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    stored = SERVICE | {"metadata": {"name": "chat", "finalizers": ["a"], **of_server}, "status": {"conditions": []}}
    assert validate({"apiVersion": "v1", "kind": "List", "items": [stored, OTHER]})[:2] == (0, "m.yaml: chat: valid\n")
    code, _, said = validate(SERVICE | {"metadata": {"name": "chat", "lables": {}}})
    assert (code, "metadata.lables: unknown field; did you mean labels?" in said) == (1, True)


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([OTHER], "m.yaml: no InferenceService of serving.legato.dev/v1alpha1 is in this file"),
        ([], "m.yaml: no InferenceService"),
        ([SERVICE | {"kind": "InferenceServce"}], "m.yaml: chat: kind: must be 'InferenceService'"),
        ([SERVICE | {"apiVersion": "serving.legato.dev/v2"}], "m.yaml: chat: apiVersion: must be"),
        ([{"spec": {}}], "m.yaml: apiVersion: required field is missing"),
        (["text"], "m.yaml: a manifest is a mapping"),
    ],
)
def test_what_is_no_manifest_is_no_success(validate, documents, said):
    code, _, errors = validate(*documents)
    assert code == 1
    assert errors.startswith(said)


def test_files_that_cannot_be_read_are_named_and_the_others_checked(tmp_path, legato):
    broken, whole = tmp_path / "broken.yaml", local_services.write(tmp_path / "whole.yaml")
    broken.write_text("a: [")
    code, out, err = legato("validate", tmp_path / "none.yaml", broken, whole)
    assert (code, out) == (1, f"{whole}: demo: valid\n")
    assert "none.yaml: No such file or directory" in err
    assert "broken.yaml: line 1" in err


def test_standard_input_and_output_for_programs(monkeypatch, legato):
    text = io.TextIOWrapper(io.BytesIO(yaml.safe_dump(_with(decode={"replica": 2})).encode()))
    monkeypatch.setattr("sys.stdin", text)
    code, out, _ = legato("validate", "-", "-o", "json")
    (found,) = json.loads(out)
    assert (code, found.pop("problems")) == (
        1,
        [{"path": "spec.decode.replica", "message": "unknown field; did you mean replicas?"}],
    )
    assert found == {"file": "-", "name": "chat", "valid": False, "withoutEffect": [], "unmetObjectives": []}
