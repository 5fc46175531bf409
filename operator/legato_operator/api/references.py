"""Claims, ConfigMaps and Secrets that a manifest references and that users create. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api.resources import Spec
from legato_operator.api.spec.model import DraftSource, Source
from legato_protocol import names

CLAIM = "PersistentVolumeClaim"
CONFIG_MAP = "ConfigMap"
SECRET = "Secret"
_SOURCES = {"secret": SECRET, "configMap": CONFIG_MAP}  # of projected volumes
_KEYS = {"secretKeyRef": SECRET, "configMapKeyRef": CONFIG_MAP}
_GROUPS = {"secretRef": SECRET, "configMapRef": CONFIG_MAP}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # valid names of objects


@dataclass(frozen=True)
class Reference:
    """An object in the service's namespace, and the field that names it."""

    path: str
    kind: str
    name: str
    key: str = ""  # required key of the Secret or ConfigMap


def of(spec: Spec) -> tuple[Reference, ...]:
    """Returns every object that must exist before pods can start."""
    parts = {"prefill": spec.prefill.template, "decode": spec.decode.template, "gateway": spec.gateway.template}
    templates = (reference for part, template in parts.items() for reference in _template(part, template))
    return (*_models(spec), *_adapters(spec), *_api_keys(spec), *_tls(spec), *_internal_tls(spec), *templates)


def _models(spec: Spec) -> Iterator[Reference]:
    yield from _source("spec.model.source", spec.model.source)
    if spec.engine.speculation is not None and spec.engine.speculation.model is not None:
        yield from _source("spec.engine.speculation.model", spec.engine.speculation.model)


def _source(path: str, source: Source | DraftSource) -> Iterator[Reference]:
    if source.pvc:
        yield Reference(f"{path}.pvc.claim", CLAIM, source.pvc.claim)
    if source.hugging_face and source.hugging_face.token_secret:
        yield Reference(f"{path}.huggingFace.tokenSecret", SECRET, source.hugging_face.token_secret, "token")


def _adapters(spec: Spec) -> Iterator[Reference]:
    for number, adapter in enumerate(spec.model.adapters):
        if adapter.source.pvc:
            yield Reference(f"spec.model.adapters.{number}.source.pvc.claim", CLAIM, adapter.source.pvc.claim)
        if (hub := adapter.source.hugging_face) and hub.token_secret:
            path = f"spec.model.adapters.{number}.source.huggingFace.tokenSecret"
            yield Reference(path, SECRET, hub.token_secret, "token")
    for number, volume in enumerate(spec.model.adapter_volumes):
        if volume.claim:
            yield Reference(f"spec.model.adapterVolumes.{number}.claim", CLAIM, volume.claim)


def _api_keys(spec: Spec) -> Iterator[Reference]:
    keys = spec.gateway.api_keys
    if keys and keys.secret:
        yield Reference("spec.gateway.apiKeys.secret", SECRET, keys.secret, names.API_KEYS)


def _tls(spec: Spec) -> Iterator[Reference]:
    tls = spec.gateway.tls
    if tls and tls.secret:
        for key in (names.TLS_CERTIFICATE, names.TLS_KEY):
            yield Reference("spec.gateway.tls.secret", SECRET, tls.secret, key)


def _internal_tls(spec: Spec) -> Iterator[Reference]:
    if spec.internal_tls:
        for key in (names.TLS_CERTIFICATE, names.TLS_KEY, names.TLS_AUTHORITY):
            yield Reference("spec.internalTLS.secret", SECRET, spec.internal_tls.secret, key)


def _template(role: str, template: Mapping[str, Any]) -> Iterator[Reference]:
    """Yields the references of a template's volumes and variables; the API server checks the rest of a pod."""
    path, spec = f"spec.{role}.template.spec", _mapping(template.get("spec"))
    for volume in _mappings(spec.get("volumes")):
        here = f"{path}.volumes[{volume.get('name')}]"
        claim = _mapping(volume.get("persistentVolumeClaim"))
        yield from _reference(f"{here}.persistentVolumeClaim.claimName", CLAIM, claim, "claimName")
        yield from _files(f"{here}.secret.secretName", SECRET, _mapping(volume.get("secret")), "secretName")
        yield from _files(f"{here}.configMap.name", CONFIG_MAP, _mapping(volume.get("configMap")), "name")
        for source in _mappings(_mapping(volume.get("projected")).get("sources")):
            for field, kind in _SOURCES.items():
                yield from _files(f"{here}.projected.{field}.name", kind, _mapping(source.get(field)), "name")
    for kind in ("initContainers", "containers"):
        for container in _mappings(spec.get(kind)):
            yield from _variables(f"{path}.{kind}[{container.get('name')}]", container)


def _files(path: str, kind: str, given: Mapping[str, Any], field: str) -> Iterator[Reference]:
    """Yields the object of a volume's source, with each key that the source lists."""
    keys = [str(item["key"]) for item in _mappings(given.get("items")) if "key" in item]
    for key in keys or [""]:
        yield from _reference(path, kind, given, field, key)


def _variables(path: str, container: Mapping[str, Any]) -> Iterator[Reference]:
    for variable in _mappings(container.get("env")):
        for field, kind in _KEYS.items():
            given = _mapping(_mapping(variable.get("valueFrom")).get(field))
            yield from _reference(f"{path}.env[{variable.get('name')}]", kind, given, "name", str(given.get("key", "")))
    for group in _mappings(container.get("envFrom")):
        for field, kind in _GROUPS.items():
            yield from _reference(f"{path}.envFrom", kind, _mapping(group.get(field)), "name")


def _reference(path: str, kind: str, given: Mapping[str, Any], field: str, key: str = "") -> Iterator[Reference]:
    name = given.get(field)
    if isinstance(name, str) and _NAME.fullmatch(name) and not given.get("optional"):
        yield Reference(path, kind, name, key)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Returns a mapping, or an empty one for another type, which the API server rejects: templates are unchecked."""
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (entry for entry in value if isinstance(entry, Mapping)) if isinstance(value, list) else ()
