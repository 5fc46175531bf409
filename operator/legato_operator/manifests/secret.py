"""The Secret of a service's token, which authenticates gateways, workers and the operator to each other."""

import base64
import contextlib
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object, labels_of, seconds_of
from legato_operator.manifests import common
from legato_protocol import names
from legato_protocol.security import service_tokens
from legato_protocol.security.service_tokens import token_id

# Annotations of the Secret: the state of a rotation, which survives a restart of the operator.
_WRITTEN = f"{names.API_GROUP}/token-id"  # id of the token that the operator wrote: a mismatch means an edit
_SINCE = f"{names.API_GROUP}/token-since"  # RFC 3339: when the token came into use
_STEPPED = f"{names.API_GROUP}/token-changed"  # RFC 3339: when the operator wrote the Secret last
_ANSWERED = f"{names.API_GROUP}/{common.ROTATE_TOKEN}"  # the last request that was answered
_LONGEST_REQUEST = 200


@dataclass(frozen=True)
class ServiceToken:
    """The tokens in the Secret and the state of their rotation. Times are seconds since the epoch; absent texts are
    empty."""

    token: str  # the token in use, which all show
    next: str = ""  # accepted by all before it comes into use
    previous: str = ""  # accepted until nobody shows it
    since: float = 0.0  # when `token` came into use
    changed: float = 0.0  # when the operator wrote the Secret
    answered: str = ""  # the answered request to rotate
    written: str = ""  # id of the token that the operator wrote
    uid: str = ""  # of the Secret

    @property
    def known(self) -> tuple[str, ...]:
        """All tokens that pods may accept, the one in use first."""
        return tuple(text for text in dict.fromkeys((self.token, self.next, self.previous)) if text)

    @property
    def rotating(self) -> bool:
        """True if a rotation is in progress."""
        return bool(self.next or self.previous or self.edited)

    @property
    def edited(self) -> bool:
        """True if somebody else wrote the token."""
        return bool(self.written) and self.written != token_id(self.token)


def requested(annotations: Mapping[str, str]) -> str:
    """Returns a service's request to rotate, or an empty text. Each new text is a new request."""
    return annotations.get(common.ANNOTATION_ROTATE_TOKEN, "")[:_LONGEST_REQUEST]


def manifest(service: InferenceService, token: ServiceToken) -> dict[str, Any]:
    """Returns the Secret with this token."""
    texts = {
        service_tokens.TOKEN: token.token,
        service_tokens.NEXT: token.next,
        service_tokens.PREVIOUS: token.previous,
    }
    annotations = {_WRITTEN: token_id(token.token), _SINCE: _stamp(token.since), _STEPPED: _stamp(token.changed)}
    annotations |= {_ANSWERED: token.answered} if token.answered else {}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items() if text}
    name = common.token_name(service)
    return common.owned_object(service, "Secret", name, annotations=annotations, type="Opaque", data=data)


def read(secret: Object) -> ServiceToken | None:
    """Returns the token in a Secret, or None without a usable one."""
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
    """Returns an object that garbage collection deletes with the Secret of this uid; unlike Secrets it is watched."""
    name = common.token_name(service)
    labels = {names.LABEL_ROLE: common.TOKEN}
    made = common.owned_object(service, common.REVISION, name, labels, data={}, revision=1)
    return common.owned(made, common.partial_object(service, "Secret", name, uid=uid))


def belongs_to(secret: Object, service: str) -> bool:
    """True if a Secret is the service's own, by its label or its owner: a foreign Secret may have the same name."""
    metadata = secret["metadata"]
    owners = [(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", ())]
    return labels_of(secret).get(names.LABEL_SERVICE) == service or (names.INFERENCE_SERVICE, service) in owners


def content(secret: Object) -> dict[str, str]:
    """Returns a Secret's texts by key, stripped; values that are not text are omitted."""
    texts = {}
    for key, value in (secret.get("data") or {}).items():
        with contextlib.suppress(ValueError):
            texts[key] = base64.b64decode(value or "").decode().strip()
    return texts


def _stamp(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _seconds(stamp: str) -> float:
    """Returns a timestamp's seconds since the epoch; 0 if it is invalid."""
    try:
        return seconds_of(stamp)
    except ValueError:
        return 0.0
