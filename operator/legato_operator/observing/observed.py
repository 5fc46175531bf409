"""What one read pass found: the plan's only input. Facts, no decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object, Ref
from legato_operator.manifests.secret import ServiceToken
from legato_protocol import names
from legato_protocol.demand import DemandReport


def known_tokens(held: ServiceToken | None, remembered: ServiceToken | None = None) -> tuple[str, ...]:
    """All that these hold, each once, in the order to show them: one that was edited is known to pods last."""
    order = (remembered, held) if held is not None and held.edited else (held, remembered)
    return tuple(dict.fromkeys(text for each in order if each is not None for text in each.known))


@dataclass(frozen=True)
class AdapterState:
    """What came of a list of adapters in a worker."""

    list: str  # its id; empty where none was read yet
    offered: frozenset[str] = frozenset()  # names
    problems: Mapping[str, str] = field(default_factory=dict)  # why others cannot be had, by name


@dataclass(frozen=True)
class WorkerState:
    """What a worker says of itself on its control port."""

    busy: int  # sequences running or waiting
    draining: bool
    transport: str  # empty when it has none
    stopping: bool = False  # its process was told to end, or does not say that it was not
    tokens: tuple[str, ...] = ()  # ids of the tokens that it takes, the one that it shows first; none by an older one
    adapters: AdapterState | None = None  # None: it follows no list
    transport_reason: str = ""  # why not a transport that comes before this one
    transport_fallback: bool = False  # whether that is less than was asked for, or than its devices promise
    failed_connections: int = 0  # to other workers, since the last that succeeded
    kernel_fallback: str = ""  # why torch's own operators compute instead of compiled kernels, if they do
    max_length: int = 0  # tokens of the longest sequence that it takes; 0: not reported
    max_running: int = 0  # maximum number of sequences that it runs at the same time; 0: not reported


@dataclass(frozen=True)
class PeerTLS:
    """How a process is known that speaks TLS: by a certificate of this authority (PEM) for this name."""

    authority: str
    name: str


@dataclass(frozen=True)
class Pod:
    """A pod of the service, whatever runs in it."""

    name: str
    uid: str
    pool: str  # prefill, decode or gateway
    revision: str  # empty for those that a Deployment made
    created: str
    ready: bool
    leaving: bool  # its deletion was asked for
    message: str = ""  # why it is not ready
    refused: str = ""  # the last words of a process that ended with a permanent error
    unstarted: bool = False  # it has a node, and none of its containers was started yet
    blocked: str = ""  # why one of its containers cannot be made
    blocked_for: float = 0.0  # seconds, at most, that this is so
    doomed: bool = False  # and trying again does not help
    was_ready: bool = False  # its processes run on since it was ready last, and it is not ready now
    downloading: bool = False  # its model is on its way
    node: str = ""  # empty before one is chosen, and on one machine
    disrupted: str = ""  # why it was evicted, preempted or taken off a lost node
    unseen_since: str = ""  # since when its node has not reported it, though it ran; empty while it does
    restarts: int = 0
    ended: str = ""  # how its process ended last
    waiting: float = 0.0  # seconds that it has not been ready; 0 when it is
    ready_for: float = 0.0  # seconds that it has been; 0 when it is not
    start_seconds: float | None = None  # from its creation until it was ready, as of now
    address: str = ""  # host:port of its control port; empty while unknown, and where nobody is to speak to it
    tls_secret: str = ""  # the Secret of its certificate, where that port has TLS
    tls: PeerTLS | None = None  # as that Secret says; None where it cannot be read
    draining_since: float | None = None
    state: WorkerState | None = None  # None: it did not answer
    age: float = 0.0  # seconds
    failed: bool = False  # it ended for good: nothing will start it again
    failures: int = 0  # how many in a row failed before it in its place
    unschedulable: bool = False  # no node takes it
    devices: Mapping[str, int] = field(default_factory=dict)  # that it holds or will, GPUs among them, by resource name
    orphaned: bool = False  # its pool or Deployment was deleted: Kubernetes removes it, and nobody is to speak to it
    lost: bool = False  # it had to be gone by now, and its node does not say so
    report: DemandReport | None = None  # of a gateway; None: it did not answer
    unreached: str = ""  # of a worker: why no gateway that tells of its connections has one to it

    @property
    def serves(self) -> bool:
        """Whether it is ready, and as far as anybody knows a gateway has greeted it."""
        return self.ready and not self.unreached

    @property
    def tokens(self) -> tuple[str, ...]:
        """Ids of the tokens that it takes, the one that it shows first; none where it did not say."""
        told = self.state or self.report
        return told.tokens if told is not None else ()

    @property
    def placeless(self) -> bool:
        """Whether it does not run for want of a place: no node takes it, or its process refuses the one it has, for
        want of memory for one.
        """
        return not self.ready and (self.unschedulable or bool(self.refused))

    @property
    def recallable(self) -> bool:
        """Whether it was chosen to leave, and may serve again: nobody asked for its end.

        One that did not answer now but is ready is asked to, before another takes its place, if it can be asked.
        """
        able = self.ready and self.address != "" if self.state is None else not self.state.stopping
        return self.draining_since is not None and able and not (self.leaving or self.failed or self.lost)

    @property
    def on_its_way_out(self) -> bool:
        """Whether it was chosen to leave, or its deletion was asked for."""
        return self.leaving or self.draining_since is not None


@dataclass(frozen=True)
class Refusal:
    """Why a generation of a service's spec is not reconciled."""

    generation: int
    reason: str
    message: str


@dataclass(frozen=True)
class Accepted:
    """What a pass works with: the newest spec, or the last usable one beside the newer one's `refusal`."""

    service: InferenceService
    generation: int  # of its spec
    written: Mapping[str, Any]  # that spec, as the cluster has it
    refusal: Refusal | None = None
    unknown: tuple[str, ...] = ()  # fields of that spec which this version leaves out


@dataclass(frozen=True)
class Observed:
    service: InferenceService
    uid: str  # of the service
    generation: int  # of its spec
    status: Mapping[str, Any]
    deleting: bool
    objects: tuple[Object, ...]  # what the operator owns, but for pods and the token
    pods: tuple[Pod, ...]
    has_token: bool  # that can be used
    now: float  # seconds since the epoch, of this machine
    timestamp: str  # the same, as the API spells it
    others: frozenset[str] = frozenset()  # names of pods that carry the service's labels and are not its own
    missing: tuple[tuple[str, str], ...] = ()  # fields that name what is not there, and what that is
    annotations: Mapping[str, str] = field(default_factory=dict)  # of the service
    written: Mapping[str, Any] = field(default_factory=dict)  # its spec, as the cluster has it
    refusal: Refusal | None = None  # of a newer generation
    unknown: tuple[str, ...] = ()  # fields of the spec that only a later version knows
    unusable: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # kinds of routes; reason and message why
    hosts_taken: tuple[tuple[str, Ref], ...] = ()  # hosts of its routes, and the older services that have them too
    turns_held: str = ""  # why no service's turn to be upgraded begins; empty where one may
    token: ServiceToken | None = field(default=None, repr=False)  # what its Secret holds
    remembered_token: ServiceToken | None = field(default=None, repr=False)  # what that held before, if anybody knows

    @property
    def tokens(self) -> tuple[str, ...]:
        """To show to its pods: the next ones are tried where one is refused."""
        return known_tokens(self.token, self.remembered_token)

    def of_pool(self, pool: str) -> tuple[Pod, ...]:
        """The pods of one pool, oldest first."""
        return tuple(pod for pod in self.pods if pod.pool == pool)

    def find(self, kind: str, name: str) -> Object | None:
        """One of the owned objects."""
        return next((item for item in self.objects if item["kind"] == kind and item["metadata"]["name"] == name), None)

    @property
    def pools(self) -> Mapping[str, Object]:
        """The WorkerPools there are, by what their workers do."""
        return {item["spec"]["role"]: item for item in self.objects if item["kind"] == names.WORKER_POOL}

    @property
    def desired_replicas(self) -> Mapping[str, int]:
        """`spec.replicas` by role, of the pools that exist and have been scaled."""
        given = {role: item["spec"].get("replicas") for role, item in self.pools.items()}
        return {role: replicas for role, replicas in given.items() if replicas is not None}

    @property
    def at_zero(self) -> bool:
        """Whether no worker is desired: a request finds nobody who would take it."""
        desired = self.desired_replicas
        return bool(desired) and not any(desired.values())
