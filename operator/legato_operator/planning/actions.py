"""Actions that a plan consists of, frozen so that plans can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from legato_operator.cluster import Ref
from legato_operator.manifests.common import MANAGER
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing.observed import PeerTLS
from legato_protocol.wire.canary import Canary


@dataclass(frozen=True)
class Apply:
    item: Mapping[str, Any]
    manager: str = MANAGER
    force: bool = True


@dataclass(frozen=True)
class PatchStatus:
    """Patches the status of an owned object. Every pass writes the service's own status separately."""

    ref: Ref
    status: Mapping[str, Any]
    uid: str


@dataclass(frozen=True)
class SetToken:
    """Applies the Secret with this token; `fresh` names the key that gets a random one. `reason` and `note` are an
    Event's, if not empty."""

    token: ServiceToken = field(repr=False)
    fresh: str = ""
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class DrainWorker:
    """Asks the worker at `address` to accept no new sequences and to migrate its running ones."""

    name: str
    address: str
    tls: PeerTLS | None = None


@dataclass(frozen=True)
class RecallWorker:
    """Asks a draining worker to serve again; if it agrees, applies `item`, which removes its drain annotation."""

    item: Mapping[str, Any]
    name: str
    address: str
    tls: PeerTLS | None = None


@dataclass(frozen=True)
class SetCanary:
    """Asks the gateway at `address` to share requests out to a canary's new workers; None ends that. The next plan
    repeats the request until the gateway reports it."""

    name: str
    address: str
    canary: Canary | None
    tls: PeerTLS | None = None


@dataclass(frozen=True)
class Delete:
    ref: Ref
    uid: str


@dataclass(frozen=True)
class Release:
    """Revokes the token and removes the operator's finalizer, so that the service can be deleted."""


Action = Apply | PatchStatus | SetToken | DrainWorker | RecallWorker | SetCanary | Delete | Release


@dataclass(frozen=True)
class Phase:
    """Actions that may run concurrently. Phases run in order."""

    name: str
    actions: tuple[Action, ...]
