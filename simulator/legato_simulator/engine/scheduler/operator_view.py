"""The operator's view of a simulated service, from the gateway's report."""

from legato_operator.policy import RECENT, WINDOW, DemandWindow, Pod, Spec, reported_signals
from legato_protocol.wire.demand import DemandReport
from legato_simulator.engine.pods import POOLS, Pods
from legato_simulator.engine.scaler import Observation
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledWorker

_ROLES = {pool: role for role, pool in POOLS.items()}


class OperatorView:
    """The view of one service, which was idle before the beginning of its workload."""

    def __init__(self, spec: Spec, idle: DemandReport) -> None:
        """`idle` is the report of a gateway without requests."""
        self._spec = spec
        self._window = DemandWindow(-WINDOW)
        self._window.add([idle], -WINDOW)

    def observation(
        self, report: DemandReport, pods: Pods[ScheduledWorker], prompts: int, decoding: int, now: float
    ) -> Observation:
        """Returns the scaler's input. `prompts` are requests without a token, `decoding` the others."""
        self._window.add([report], now)
        signals = reported_signals(self._window, [_pod(worker, now) for worker in pods.all], [report])
        recent = 0 if signals.traffic is None else sum(lengths.requests for lengths in signals.traffic.recent)
        decoders = [worker.load for worker in report.workers if worker.role != "prefill"]
        used = sum(load.used_blocks for load in decoders)
        total = sum(load.free_blocks + load.cached_blocks + load.used_blocks for load in decoders)
        both = {"prefill": prompts, "decode": decoding}
        return Observation(
            now=now,
            signals=signals,
            sizes=dict(pods.desired),
            ready=pods.ready(now),
            requests=recent / RECENT,
            in_flight=both if self._spec.disaggregated else {"decode": prompts + decoding},
            queue_tokens=sum(worker.load.queue_tokens for worker in report.workers) + report.queued_tokens,
            kv_usage=used / total if total else 0.0,
        )


def _pod(worker: ScheduledWorker, now: float) -> Pod:
    return Pod(
        name=worker.name,
        uid=worker.name,
        pool=_ROLES[worker.pool],
        revision="",
        created="",
        ready=worker.serves(now),
        leaving=False,
        start_seconds=worker.kind.start if worker.serves(now) else None,
        draining_since=worker.draining_since,
        age=now - worker.created,
    )
