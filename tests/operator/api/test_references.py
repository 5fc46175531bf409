"""What a manifest names that somebody else has to make is found, wherever it is named."""

import pytest

from legato_operator.api import parsing, references
from legato_operator.api.references import Reference

COMMIT = "0e9e39f249a16976918f6564b8830bc894c89659"
HUB = {"huggingFace": {"repo": "a/b", "revision": COMMIT, "tokenSecret": "hub"}}


def _of(build, **spec):
    return references.of(parsing.read_service(build(**spec)).spec)


def _worker(**fields):
    return {"template": {"spec": {"containers": [{"name": "worker", **fields}]}}}


def _volume(**fields):
    return {"template": {"spec": {"volumes": [{"name": "extra", **fields}]}}}


def test_built_in_model_needs_nothing(build):
    assert _of(build) == ()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({"pvc": {"claim": "weights"}}, Reference("spec.model.source.pvc.claim", "PersistentVolumeClaim", "weights")),
        (HUB, Reference("spec.model.source.huggingFace.tokenSecret", "Secret", "hub", "token")),
    ],
)
def test_model_source_names_one(build, source, found):
    assert _of(build, model={"source": source}) == (found,)


def test_an_adapter_of_the_hub_names_the_secret_with_its_token(build):
    adapters = [{"name": "sql", "source": {"path": "/sql"}}, {"name": "law", "source": HUB}]
    path = "spec.model.adapters.1.source.huggingFace.tokenSecret"
    made = _of(build, model={"source": {"builtin": "smollm2-135m-instruct"}, "adapters": adapters})
    assert made == (Reference(path, "Secret", "hub", "token"),)


@pytest.mark.parametrize(
    ("pool", "path", "kind", "key"),
    [
        (
            _volume(persistentVolumeClaim={"claimName": "x"}),
            "volumes[extra].persistentVolumeClaim.claimName",
            "PersistentVolumeClaim",
            "",
        ),
        (_volume(secret={"secretName": "x"}), "volumes[extra].secret.secretName", "Secret", ""),
        (
            _worker(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x", "key": "k"}}}]),
            "containers[worker].env[A]",
            "Secret",
            "k",
        ),
        (_worker(envFrom=[{"secretRef": {"name": "x"}}]), "containers[worker].envFrom", "Secret", ""),
    ],
)
def test_template_names_one(build, pool, path, kind, key):
    for part in ("decode", "gateway"):
        assert _of(build, **{part: pool}) == (Reference(f"spec.{part}.template.spec.{path}", kind, "x", key),)


@pytest.mark.parametrize(
    "pool",
    [
        _volume(secret={"secretName": "x", "optional": True}),
        _volume(emptyDir={}),
        _volume(secret="x"),
        _worker(env=[{"name": "A", "value": "b"}]),
        _worker(env="none"),
        _worker(envFrom=[{"configMapRef": {"name": "x"}}, "y"]),
        _volume(secret={"secretName": "../../elsewhere/secrets/x"}),
        _volume(secret={"secretName": ""}),
        {"template": {"spec": {"volumes": "none", "containers": 3}}},
    ],
)
def test_what_is_optional_or_no_reference_is_not_needed(build, pool):
    assert _of(build, decode=pool) == ()
