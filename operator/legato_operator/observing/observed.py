"""The result of one read pass, which is the plan's only input. Facts, no decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object, Ref
from legato_operator.manifests.secret import ServiceToken
from legato_protocol import names
from legato_protocol.wire.demand import DemandReport


def known_tokens(held: ServiceToken | None, remembered: ServiceToken | None = None) -> tuple[str, ...]:
    """Returns all known tokens without duplicates, in the order to try them: pods learn of an edited token last."""
    order = (remembered, held) if held is not None and held.edited else (held, remembered)
    return tuple(dict.fromkeys(text for each in order if each is not None for text in each.known))


@dataclass(frozen=True)
class AdapterState:
    """A worker's state of its list of adapters."""

    list: str  # id of the list; empty before one was read
    offered: frozenset[str] = frozenset()  # names
    problems: Mapping[str, str] = field(default_factory=dict)  # of the other adapters, by name


@dataclass(frozen=True)
class KVFormat:
    """A worker's KV: workers exchange it if `revision` is equal. The other fields are parts of it for people."""

    revision: str
    weights: str  # fingerprint
    layout: str
    formats: str  # name of the number formats


@dataclass(frozen=True)
class WorkerState:
    """A worker's report on its control port."""

    busy: int  # sequences running or waiting
    draining: bool
    transport: str  # empty if it has none
    stopping: bool = False  # its process is stopping, or does not report it
    tokens: tuple[str, ...] = ()  # ids of accepted tokens, the shown one first; empty if an older worker reports none
    adapters: AdapterState | None = None  # None: it follows no list
    transport_reason: str = ""  # why a preferred transport is not used
    transport_fallback: bool = False  # True if the transport is below the requested one, or what its devices support
    failed_connections: int = 0  # to other workers, since the last success
    kernel_fallback: str = ""  # why something slower replaces compiled kernels, if it does
    tier_problem: str = ""  # why KV could not be written to a slower tier, or read from it, in the last minutes
    max_length: int = 0  # tokens of the longest accepted sequence; 0: not reported
    max_running: int = 0  # maximum number of concurrently running sequences; 0: not reported
    kv: KVFormat | None = None  # None: not reported
    core_runs: bool = True  # False while its core starts: nothing of it is reported, such as its transport


@dataclass(frozen=True)
class PeerTLS:
    """Verification of a process with TLS: a certificate of this authority (PEM) for this name."""

    authority: str
    name: str


@dataclass(frozen=True)
class Pod:
    """A pod of the service: a worker or a gateway."""

    name: str
    uid: str
    pool: str  # prefill, decode or gateway
    revision: str  # empty for pods of an older operator's Deployment
    created: str
    ready: bool
    leaving: bool  # its deletion was requested
    message: str = ""  # why it is not ready
    refused: str = ""  # last output of a process that ended with a permanent error
    unstarted: bool = False  # it has a node, and none of its containers has started yet
    blocked: str = ""  # why one of its containers cannot be created
    blocked_for: float = 0.0  # maximum seconds for which it has been blocked
    doomed: bool = False  # retries cannot unblock it
    was_ready: bool = False  # it is not ready, and its processes still run since it was
    downloading: bool = False  # it is downloading its model or an adapter
    node: str = ""  # empty before scheduling, and on one machine
    disrupted: str = ""  # why it was evicted, preempted or removed from a lost node
    unseen_since: str = ""  # since when its node has not reported it, although it ran; else empty
    restarts: int = 0
    ended: str = ""  # how its process ended last
    waiting: float = 0.0  # seconds of unreadiness; 0 if ready
    ready_for: float = 0.0  # seconds of readiness; 0 if not ready
    start_seconds: float | None = None  # from its creation until it was ready
    address: str = ""  # host:port of its control port; empty if unknown, or if it must not be contacted
    tls_secret: str = ""  # the Secret of its certificate, if that port has TLS
    tls: PeerTLS | None = None  # from that Secret; None if unreadable
    draining_since: float | None = None
    state: WorkerState | None = None  # None: it did not answer
    last_state: WorkerState | None = None  # the last one with a running core, kept for a minute of silence
    age: float = 0.0  # seconds
    failed: bool = False  # it ended for good and will not be restarted
    failures: int = 0  # failures in a row of its predecessors
    unschedulable: bool = False  # no node accepts it
    devices: Mapping[str, int] = field(default_factory=dict)  # requested devices, including GPUs, by resource name
    adoptable: bool = False  # its pool was deleted, and no other controls it yet
    orphaned: bool = False  # its pool or Deployment was deleted: Kubernetes removes it, and it must not be contacted
    lost: bool = False  # its deletion is overdue, and its node does not report
    report: DemandReport | None = None  # of a gateway; None: it did not answer
    unreached: str = ""  # of a worker: why no gateway that reports connections has one to it

    @property
    def serves(self) -> bool:
        """True if the pod is ready, and no gateway report contradicts that it is connected."""
        return self.ready and not self.unreached

    @property
    def recent_state(self) -> WorkerState | None:
        """Its state for conditions, which one missed answer, or the restart of a core, must not change."""
        return self.state if self.state is not None and self.state.core_runs else self.last_state

    @property
    def tokens(self) -> tuple[str, ...]:
        """Ids of the tokens that it accepts, the shown one first; empty if not reported."""
        source = self.state or self.report
        return source.tokens if source is not None else ()

    @property
    def placeless(self) -> bool:
        """True if the pod lacks a place to run: no node accepts it, or its process refuses the node, for example for
        its memory."""
        return not self.ready and (self.unschedulable or bool(self.refused))

    @property
    def recallable(self) -> bool:
        """True if the worker drains and may serve again, because its deletion was not requested.

        A ready worker that did not answer this pass counts as recallable if it has an address.
        """
        able = self.ready and self.address != "" if self.state is None else not self.state.stopping
        return self.draining_since is not None and able and not (self.leaving or self.failed or self.lost)

    @property
    def on_its_way_out(self) -> bool:
        """True if the pod drains, or its deletion was requested."""
        return self.leaving or self.draining_since is not None


@dataclass(frozen=True)
class Refusal:
    """The reason why a generation of a service's spec is not reconciled."""

    generation: int
    reason: str
    message: str


@dataclass(frozen=True)
class Accepted:
    """The spec that a pass reconciles: the newest, or the last usable one with the newest one's `refusal`."""

    service: InferenceService
    generation: int  # of its spec
    written: Mapping[str, Any]  # the spec as stored in the cluster
    refusal: Refusal | None = None
    unknown: tuple[str, ...] = ()  # fields of the spec that this version does not know


@dataclass(frozen=True)
class Observed:
    service: InferenceService
    uid: str  # of the service
    generation: int  # of its spec
    status: Mapping[str, Any]
    deleting: bool
    objects: tuple[Object, ...]  # owned objects except pods and the token
    pods: tuple[Pod, ...]
    has_token: bool  # a usable one
    now: float  # seconds since the epoch, of this machine
    timestamp: str  # the same, in the API's format
    others: frozenset[str] = frozenset()  # names of foreign pods with the service's labels
    missing: tuple[tuple[str, str], ...] = ()  # fields that reference missing objects, each with the problem
    annotations: Mapping[str, str] = field(default_factory=dict)  # of the service
    written: Mapping[str, Any] = field(default_factory=dict)  # its spec as stored in the cluster
    refusal: Refusal | None = None  # of a newer generation
    unknown: tuple[str, ...] = ()  # fields of the spec that only a later version knows
    unusable: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # reason and message, by kind of route
    hosts_taken: tuple[tuple[str, Ref], ...] = ()  # hosts of its routes that older services have, too
    unchanged_until: float = 0.0  # all gateways have reported that demand did not change until then; 0: not known
    upgrades_stopped: str = ""  # why no service's upgrade starts; empty if one may
    token: ServiceToken | None = field(default=None, repr=False)  # from its Secret
    remembered_token: ServiceToken | None = field(default=None, repr=False)  # from an earlier pass

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens to try on its pods, in this order."""
        return known_tokens(self.token, self.remembered_token)

    def of_pool(self, pool: str) -> tuple[Pod, ...]:
        """Returns the pods of one pool, oldest first."""
        return tuple(pod for pod in self.pods if pod.pool == pool)

    def find(self, kind: str, name: str) -> Object | None:
        """Returns an owned object, or None."""
        return next((item for item in self.objects if item["kind"] == kind and item["metadata"]["name"] == name), None)

    @property
    def pools(self) -> Mapping[str, Object]:
        """Existing WorkerPools by role."""
        return {item["spec"]["role"]: item for item in self.objects if item["kind"] == names.WORKER_POOL}

    @property
    def desired_replicas(self) -> Mapping[str, int]:
        """`spec.replicas` by role, of pools that exist and have been scaled."""
        given = {role: item["spec"].get("replicas") for role, item in self.pools.items()}
        return {role: replicas for role, replicas in given.items() if replicas is not None}

    @property
    def at_zero(self) -> bool:
        """True if no worker is desired, so that requests must wait for one to start."""
        desired = self.desired_replicas
        return bool(desired) and not any(desired.values())
