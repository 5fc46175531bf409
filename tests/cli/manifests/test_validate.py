"""`legato validate` says offline what the API server and the operator would say, and ends with 1 for it."""

import io
import json

import local_services
import pytest
import wordy_model
import yaml
from local_services import ONE_GPU, manifest
from wrong_manifests import WRONG

from legato_cli.machine import gpus

SERVICE, VALID = manifest("chat"), "m.yaml: chat: valid\n"
OTHER = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"a": "b"}}
KSERVE = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "theirs"}}
AMD = {"resources": {"requests": {"amd.com/gpu": 1}}}  # a GPU, if the operator is given that name
PACED = {"runner": "Paced", "profile": "h200-llama-3.1-8b-bf16"}
NO_EFFECT = {"gateway": {"ingress": {"hosts": ["a.example"]}, "resources": {"limits": {"cpu": 1}}}}


@pytest.fixture
def validate(tmp_path, legato):
    """Exit code, output and errors for documents that are written into one file."""

    def run(*documents, flags=()):
        path = tmp_path / "m.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        code, *texts = legato("validate", path, *flags)
        return code, *(text.replace(str(path), "m.yaml") for text in texts)

    return run


@pytest.mark.parametrize(("flags", "valid"), [((), True), (("--local",), False)])
def test_a_draft_model_with_other_tokens_is_refused_where_its_files_are(validate, flags, valid):
    drafts = {"method": "Draft", "model": {"path": str(wordy_model.path())}}
    code, out, err = validate(_with(engine={"speculation": drafts}), flags=flags)
    assert (code == 0, "valid" in out) == (valid, valid)
    assert valid or "spec.engine.speculation.model: " in err
    assert valid or "token 3 is '<repo_name>' there and '</arg_value>' here" in err


def _with(**spec):
    return manifest("chat", **spec)


@pytest.mark.parametrize(
    ("spec", "flags", "key", "paths"),
    [
        (NO_EFFECT, ("--local",), "withoutEffect", ["spec.gateway.resources", "spec.gateway.ingress"]),
        (NO_EFFECT, (), "withoutEffect", []),
        *(
            ({"engine": PACED, "slo": slo}, flags, "unmetObjectives", [f"spec.slo.{name}" for name in slo])
            for slo in ({"ttft": "1ms", "tpot": "1ms"}, {})
            for flags in ((), ("--local",))
        ),
        # The speed of other workers is not known.
        *(
            ({"engine": engine, "slo": {"tpot": "1ms"}}, (), "unmetObjectives", [])
            for engine in ({}, {"runner": "Paced", "profile": "/profiles/mine.json"})
        ),
    ],
)
def test_fields_without_effect_and_objectives_that_paced_workers_miss_harm_nothing(validate, spec, flags, key, paths):
    code, out, err = validate(_with(**spec), flags=flags)
    valid, *rest = out.splitlines(keepends=True)
    assert (code, valid, err) == (0, VALID, "")
    assert [line.split(": ")[2] for line in rest] == paths
    said = {"withoutEffect": "has no effect here", "unmetObjectives": ": slo."}[key]
    assert all(said in line for line in rest)
    (written,) = json.loads(validate(_with(**spec), flags=(*flags, "-o", "json"))[1])
    assert [entry["path"] for entry in written[key]] == paths


@pytest.mark.parametrize("there", [(), ("0",)], ids=["no GPU", "a GPU"])
def test_gpus_have_an_effect_if_this_machine_has_some(validate, monkeypatch, there):
    monkeypatch.setattr(gpus, "visible", lambda _: there)
    code, out, _ = validate(_with(prefill=ONE_GPU, decode=ONE_GPU), flags=("--local",))
    unused = "m.yaml: chat: spec.decode.resources: nvidia.com/gpu has no effect here"
    assert (code, unused in out) == (0, not there)
    code, *said = validate(_with(prefill=AMD, decode=AMD), flags=("--local",))
    assert (code, "spec.decode.resources: amd.com/gpu" in said[code]) == (len(there), True)
    code, _, err = validate(_with(decode=ONE_GPU), flags=("--local",))
    assert (code, "spec.prefill.resources: must request GPUs" in err) == (len(there), bool(there))


def test_what_workers_on_kubernetes_never_do_is_refused_there(validate):
    code, _, err = validate(_with(decode=ONE_GPU, engine={"dtype": "Float16"}))
    assert (code, "spec.prefill.resources: must request GPUs" in err) == (1, True)
    code, out, _ = validate(_with(prefill=AMD, decode=AMD, engine={"dtype": "Float16"}))
    assert (code, "spec.decode.resources: amd.com/gpu is refused by an operator whose gpuResources" in out) == (0, True)
    code, _, err = validate(_with(engine={"dtype": "Float16"}))
    assert (code, "spec.engine.dtype: Float16 needs workers that request GPUs" in err) == (1, True)


def test_every_problem_is_given_with_its_path(validate):
    """Problems of the CRD's schema and of its CEL rules."""
    code, _, said = validate(*(manifest(f"wrong-{number}", **spec) for number, (spec, _, _) in enumerate(WRONG)))
    assert code == 1
    for number, (_, path, message) in enumerate(WRONG):
        begin = f"m.yaml: wrong-{number}: {path}: "
        assert any(line.startswith(begin) and message in line for line in said.splitlines()), (path, message)


def test_all_problems_of_all_documents_are_printed_and_other_objects_left_out(validate):
    wrong = _with(decode={"replica": 2}, engine={"blockSize": 24}) | {"metadata": {"name": "wrong"}}
    code, out, err = validate(OTHER, wrong, KSERVE, SERVICE)
    assert (code, out) == (1, VALID)
    problems = [line.split(": ")[1:3] for line in err.splitlines()]
    assert problems == [["wrong", "spec.engine.blockSize"], ["wrong", "spec.decode.replica"]]


@pytest.mark.parametrize(
    ("spec", "path", "where"),
    [
        ({"engine": {"numerics": "Invariant"}}, "spec.engine.numerics", "both"),
        ({"model": {"source": {"path": "models/mine"}}}, "spec.model.source.path", "Kubernetes"),
        (
            {"decode": {"template": {"spec": {"restartPolicy": "Never"}}}},
            "spec.decode.template.spec.restartPolicy",
            "Kubernetes",
        ),
        (
            {
                "decode": {
                    "template": {"spec": {"containers": [{"name": "x", "resources": {"limits": {"memory": "1Gib"}}}]}}
                }
            },
            "spec.decode.template.spec.containers[x].resources.limits.memory",
            "Kubernetes",
        ),
        ({"gateway": {"replicas": 2}}, "spec.gateway.replicas", "local"),
    ],
)
def test_refusals_of_the_operator_depend_on_where_it_runs(validate, spec, path, where):
    for flags, elsewhere in ((), "local"), (("--local",), "Kubernetes"):
        code, _, err = validate(_with(**spec), flags=flags)
        assert (code, path in err) == ((0, False) if where == elsewhere else (1, True))


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
