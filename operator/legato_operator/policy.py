"""The operator's decisions: signals, autoscaler, limits, rollout and GPU budget.

The reconciler and the simulator call the same functions. Pure: time and observed pods are arguments. The simulator
imports nothing else of the operator.
"""

from legato_operator.api import roles
from legato_operator.api.quantities import accelerators, quantity
from legato_operator.api.resources import Bounds, Slo, Spec
from legato_operator.api.resources import Pool as PoolSpec
from legato_operator.api.rules import problems
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import DECIDE_EVERY, decide
from legato_operator.autoscaler.demand_window import NEWEST, RECENT, WINDOW, DemandWindow
from legato_operator.autoscaler.signals import (
    Blocks,
    DecodeCost,
    OutputLengths,
    Pool,
    PrefillCost,
    PromptLengths,
    Signals,
    Traffic,
    WorkerSignals,
)
from legato_operator.autoscaler.window import LONGEST_GAP, Window
from legato_operator.manifests.pods.gateway import step_objective
from legato_operator.observing.observed import Pod
from legato_operator.observing.reported_signals import reported_signals
from legato_operator.planning.pools import limits
from legato_operator.planning.pools.gpu_budget import starting_order
from legato_operator.planning.rollout.rolling_update import Count, Step, configured, next_step

__all__ = [
    "DECIDE_EVERY",
    "LONGEST_GAP",
    "NEWEST",
    "RECENT",
    "WINDOW",
    "Blocks",
    "Bounds",
    "Count",
    "DecodeCost",
    "DemandWindow",
    "OutputLengths",
    "Pod",
    "Pool",
    "PoolSpec",
    "PrefillCost",
    "PromptLengths",
    "Signals",
    "Slo",
    "Spec",
    "Step",
    "Traffic",
    "Window",
    "WorkerSignals",
    "accelerators",
    "configured",
    "decide",
    "limits",
    "next_step",
    "problems",
    "quantity",
    "record",
    "reported_signals",
    "roles",
    "starting_order",
    "step_objective",
]
