"""The service's token: what authenticates gateways, workers and the operator to each other, and how it is replaced."""

import base64
import contextlib
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object, labels_of
from legato_operator.manifests import common
from legato_protocol import names, service_tokens
from legato_protocol.service_tokens import token_id

# Annotations of the Secret: what a rotation has to know, so that a restart of the operator loses nothing.
_WRITTEN = f"{names.API_GROUP}/token-id"  # of the token that the operator wrote: another one was written by somebody
_SINCE = f"{names.API_GROUP}/token-since"  # RFC 3339: when the token came into use
_STEPPED = f"{names.API_GROUP}/token-changed"  # RFC 3339: when the operator wrote the Secret last
_ANSWERED = f"{names.API_GROUP}/{common.ROTATE_TOKEN}"  # the request that was answered last
_LONGEST_REQUEST = 200


@dataclass(frozen=True)
class ServiceToken:
    """What the Secret holds. Times are seconds since the epoch; texts that are not there are empty."""

    token: str  # that all show
    next: str = ""  # that all have to take before it is shown
    previous: str = ""  # that is taken until nobody shows it
    since: float = 0.0  # when `token` came into use
    changed: float = 0.0  # when the operator wrote this
    answered: str = ""  # the request to rotate that it answers
    written: str = ""  # id of the token that the operator wrote
    uid: str = ""  # of the Secret that it was read from

    @property
    def known(self) -> tuple[str, ...]:
        """Those that somebody may take, the one in use first."""
        return tuple(text for text in dict.fromkeys((self.token, self.next, self.previous)) if text)

    @property
    def rotating(self) -> bool:
        """Whether another step is to come."""
        return bool(self.next or self.previous or self.edited)

    @property
    def edited(self) -> bool:
        """Whether somebody else wrote the token."""
        return bool(self.written) and self.written != token_id(self.token)


def requested(annotations: Mapping[str, str]) -> str:
    """The request to rotate that a service carries; empty for none. Any other text is another request."""
    return annotations.get(common.ANNOTATION_ROTATE_TOKEN, "")[:_LONGEST_REQUEST]


def manifest(service: InferenceService, held: ServiceToken) -> dict[str, Any]:
    """The Secret that holds this."""
    texts = {service_tokens.TOKEN: held.token, service_tokens.NEXT: held.next, service_tokens.PREVIOUS: held.previous}
    annotations = {_WRITTEN: token_id(held.token), _SINCE: _stamp(held.since), _STEPPED: _stamp(held.changed)}
    annotations |= {_ANSWERED: held.answered} if held.answered else {}
    metadata = common.metadata(service, common.token_name(service)) | {"annotations": annotations}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items() if text}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


def read(secret: Object) -> ServiceToken | None:
    """What one holds; None where it has no token that can be used."""
    texts = {key: text for key, text in content(secret).items() if service_tokens.usable(text)}
    if service_tokens.TOKEN not in texts:
        return None
    metadata = secret["metadata"]
    annotations = metadata.get("annotations", {})
    made = _seconds(metadata.get("creationTimestamp", ""))
    return ServiceToken(
        texts[service_tokens.TOKEN],
        texts.get(service_tokens.NEXT, ""),
        texts.get(service_tokens.PREVIOUS, ""),
        since=_seconds(annotations.get(_SINCE, "")) or made,
        changed=_seconds(annotations.get(_STEPPED, "")) or made,
        answered=annotations.get(_ANSWERED, ""),
        written=annotations.get(_WRITTEN, ""),
        uid=metadata.get("uid", ""),
    )


def witness(service: InferenceService, uid: str) -> dict[str, Any]:
    """An object that is watched, unlike Secrets, and that garbage collection deletes with the Secret of this uid."""
    name = common.token_name(service)
    owner = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "uid": uid}}
    metadata = common.metadata(service, name, {names.LABEL_ROLE: common.TOKEN})
    made = {"apiVersion": "apps/v1", "kind": common.REVISION, "metadata": metadata, "data": {}, "revision": 1}
    return common.owned(made, owner)


def belongs_to(secret: Object, service: str) -> bool:
    """Whether it is the service's own, though somebody took its label away: another one may have the name."""
    metadata = secret["metadata"]
    owners = [(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", ())]
    return labels_of(secret).get(names.LABEL_SERVICE) == service or (names.INFERENCE_SERVICE, service) in owners


def content(secret: Object) -> dict[str, str]:
    """What a Secret holds, by key and without spaces around it; without what is no text."""
    found = {}
    for key, value in (secret.get("data") or {}).items():
        with contextlib.suppress(ValueError):
            found[key] = base64.b64decode(value or "").decode().strip()
    return found


def _stamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _seconds(stamp: str) -> float:
    """0 for what is no time."""
    try:
        return datetime.datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
