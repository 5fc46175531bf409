"""What a plan can ask for. Frozen, so that two plans compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from legato_operator.cluster import Ref
from legato_operator.manifests.common import MANAGER
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing.observed import PeerTLS


@dataclass(frozen=True)
class Apply:
    item: Mapping[str, Any]
    manager: str = MANAGER
    force: bool = True


@dataclass(frozen=True)
class PatchStatus:
    """Tell an owned object's status; the service's own is told with every pass."""

    ref: Ref
    status: Mapping[str, Any]
    uid: str


@dataclass(frozen=True)
class SetToken:
    """Apply the Secret that holds this, where `fresh` names the key that gets a random token. `reason` and `note` are
    those of an Event; empty for none."""

    held: ServiceToken = field(repr=False)
    fresh: str = ""
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class DrainWorker:
    """Tell the worker at `address` to take nothing new and to give away what it runs."""

    name: str
    address: str
    tls: PeerTLS | None = None


@dataclass(frozen=True)
class RecallWorker:
    """Tell a worker that drains to serve again, and if it agrees, take its mark away by applying `item`."""

    item: Mapping[str, Any]
    name: str
    address: str
    tls: PeerTLS | None = None


@dataclass(frozen=True)
class Delete:
    ref: Ref
    uid: str


@dataclass(frozen=True)
class Release:
    """The service may go: end the token, and take the operator's finalizer away."""


Action = Apply | PatchStatus | SetToken | DrainWorker | RecallWorker | Delete | Release


@dataclass(frozen=True)
class Phase:
    """Actions that may happen together. Phases happen in order."""

    name: str
    actions: tuple[Action, ...]
