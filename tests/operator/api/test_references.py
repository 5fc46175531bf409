"""Objects that a manifest names, and somebody else makes, are listed wherever they are named."""

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


def _adapters(*sources):
    named = [{"name": f"a{number}", "source": source} for number, source in enumerate(sources)]
    return {"source": {"builtin": "smollm2-135m-instruct"}, "adapters": named}


HUB_TOKEN = "huggingFace.tokenSecret"


@pytest.mark.parametrize(
    ("model", "references"),
    [
        (_adapters(), []),
        ({"source": {"pvc": {"claim": "weights"}}}, [("source.pvc.claim", "PersistentVolumeClaim", "weights")]),
        ({"source": HUB}, [(f"source.{HUB_TOKEN}", "Secret", "hub", "token")]),
        (_adapters({"path": "/sql"}, HUB), [(f"adapters.1.source.{HUB_TOKEN}", "Secret", "hub", "token")]),
    ],
)
def test_model_names_a_claim_or_the_secret_with_its_token(build, model, references):
    assert _of(build, model=model) == tuple(Reference(f"spec.model.{path}", *rest) for path, *rest in references)


CLAIM = {"persistentVolumeClaim": {"claimName": "x"}}
ITEMS = {"name": "x", "items": [{"key": "a", "path": "a"}, {"key": "b", "path": "c"}]}


def _key(field):
    return {"name": "A", "valueFrom": {field: {"name": "x", "key": "k"}}}


@pytest.mark.parametrize(
    ("pool", "references"),
    [
        (_volume(**CLAIM), [("volumes[extra].persistentVolumeClaim.claimName", "PersistentVolumeClaim", "x")]),
        (_volume(secret={"secretName": "x"}), [("volumes[extra].secret.secretName", "Secret", "x")]),
        (_worker(env=[_key("secretKeyRef")]), [("containers[worker].env[A]", "Secret", "x", "k")]),
        (_worker(envFrom=[{"secretRef": {"name": "x"}}]), [("containers[worker].envFrom", "Secret", "x")]),
        (_volume(configMap={"name": "x"}), [("volumes[extra].configMap.name", "ConfigMap", "x")]),
        (_volume(configMap=ITEMS), [("volumes[extra].configMap.name", "ConfigMap", "x", key) for key in ("a", "b")]),
        (
            _volume(projected={"sources": [{"secret": {"name": "x"}}, {"configMap": {"name": "y"}}, {"podInfo": {}}]}),
            [
                ("volumes[extra].projected.secret.name", "Secret", "x"),
                ("volumes[extra].projected.configMap.name", "ConfigMap", "y"),
            ],
        ),
        (_worker(envFrom=[{"configMapRef": {"name": "x"}}, "y"]), [("containers[worker].envFrom", "ConfigMap", "x")]),
        (_worker(env=[_key("configMapKeyRef")]), [("containers[worker].env[A]", "ConfigMap", "x", "k")]),
        # Optional, or not a reference.
        (_volume(secret={"secretName": "x", "optional": True}), []),
        (_volume(emptyDir={}), []),
        (_volume(secret="x"), []),
        (_worker(env=[{"name": "A", "value": "b"}]), []),
        (_worker(env="none"), []),
        (_volume(configMap={"name": "x", "optional": True}), []),
        (_volume(secret={"secretName": "../../elsewhere/secrets/x"}), []),
        (_volume(secret={"secretName": ""}), []),
        ({"template": {"spec": {"volumes": "none", "containers": 3}}}, []),
    ],
)
def test_template_names_what_its_pods_need(build, pool, references):
    for part in ("decode", "gateway"):
        here = f"spec.{part}.template.spec"
        assert _of(build, **{part: pool}) == tuple(Reference(f"{here}.{path}", *rest) for path, *rest in references)
