"""The collaborators that the parts of the relay share."""

from dataclasses import dataclass, field

from legato_gateway.admission.demand import Demand
from legato_gateway.admission.queue import Admission
from legato_gateway.metrics.gateway_metrics import Metrics
from legato_gateway.relay.records.history import History
from legato_gateway.relay.records.revision_counts import RevisionCounts
from legato_gateway.relay.registry import Registry
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.timers import Timers
from legato_gateway.workers.fleet import Fleet


@dataclass(frozen=True, slots=True)
class RelayContext:
    """The collaborators of the relay and its parts. `timers` is the clock of all deadlines."""

    fleet: Fleet
    index: KVIndex
    admission: Admission
    history: History
    metrics: Metrics
    timers: Timers
    demand: Demand = field(default_factory=Demand)
    registry: Registry = field(default_factory=Registry)
    revisions: RevisionCounts = field(default_factory=RevisionCounts)
