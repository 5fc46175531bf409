"""The prompts queued on workers, and the room in these queues. Pure: part of `admission`."""

from collections.abc import Mapping, Sequence

from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.routing import scorers
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView

SLOWEST = 0.05  # least part of its rate that a worker with many sequences is assumed to spend on prompts


class PromptQueues:
    """The uncached tokens queued at each worker that prefills, and the rates at which workers compute them.

    Only the shortest queue counts, not their sum: otherwise a long prompt would wait until the whole fleet is nearly
    idle. Where prefill workers cannot compute everything queued within the objective, decode workers help with the time
    that the objective for later tokens leaves to them.
    """

    def __init__(
        self, usable: Sequence[WorkerView], snapshot: FleetSnapshot, limits: AdmissionLimits, queued_tokens: int
    ) -> None:
        """Reads the queues of `usable` workers. `queued_tokens` are prompt tokens queued in the gateway."""
        prefillers = [worker for worker in usable if worker.prefills]
        usual = scorers.usual_rate(snapshot)
        self._rates = {worker.name: worker.prefill_rate or usual for worker in prefillers or usable}
        self._tokens = {worker.name: worker.backlog for worker in usable}
        self._measured = any(worker.prefill_rate > 0 for worker in prefillers or usable)
        self._backlog_seconds = limits.backlog_seconds
        self._min_backlog = limits.min_backlog_tokens / max(1, len(self._rates))
        self._spare: dict[str, float] = {}  # tokens per second, of decode workers that help
        goal, refuse = limits.objectives, limits.refuse_beyond
        late = goal is not None and self.seconds(queued_tokens) > goal.ttft

        def shared(workers: Sequence[WorkerView], tpot: float) -> dict[str, float]:
            step = scorers.usual_step(snapshot)
            return {w.name: (w.prefill_rate or usual) * scorers.prompt_share(w, tpot, step) for w in workers}

        spare: dict[str, float] = {}
        if prefillers and goal is not None and (late or refuse is not None):
            helpers = [worker for worker in usable if worker.role == "decode" and not worker.shares_cores]
            rates = shared(helpers, goal.tpot)
            spare = {name: rate for name, rate in rates.items() if rate > 0}
            self._spare = spare if late else {}
        self._effective = self._rates | spare  # of workers that also decode: in the time that steps leave
        if refuse is not None and not prefillers:
            rates = shared(usable, refuse.tpot)
            self._effective = {name: max(rates[name], SLOWEST * rate) for name, rate in self._rates.items()}
        self._costs = [worker.prefill_cost for worker in prefillers or usable]

    @property
    def helped(self) -> bool:
        """True if decode workers help."""
        return bool(self._spare)

    def shortest_for(self, tokens: int, backlogs: int = 1) -> str | None:
        """Returns the worker with the shortest queue if `tokens` more fit.

        It may get `backlogs` times the usual length.
        """
        name = min(self._rates, key=lambda name: self._tokens[name] / self._rates[name], default=None)
        if name is None:
            return None
        most = max(self._min_backlog, self._rates[name] * self._backlog_seconds)
        return name if self._fits(name, tokens, most * backlogs) else None

    def can_help(self, name: str, tokens: int) -> bool:
        """True if that decode worker can compute `tokens` more in its spare time, and sooner than prefill workers."""
        rate = self._spare.get(name)
        if rate is None or not self._fits(name, tokens, rate * self._backlog_seconds):
            return False
        separate = min((self._tokens[each] + tokens) / self._rates[each] for each in self._rates)
        return (self._tokens[name] + tokens) / rate < separate

    def full(self, tokens: int) -> bool:
        """True if no worker has room for `tokens` more."""
        return self.shortest_for(tokens) is None and not any(self.can_help(name, tokens) for name in self._spare)

    def add(self, name: str, tokens: int) -> None:
        """Queues `tokens` more on that worker."""
        self._tokens[name] += tokens

    def seconds(self, tokens: int) -> float:
        """Returns about how many seconds `tokens` more take; 0 if no rate was measured yet.

        Decode workers count only if that is faster: they may have long queues of their own.
        """
        if not self._measured:
            return 0.0
        separate, together = self._rates, {**self._rates, **self._spare}
        return min(self._seconds(tokens, rates) for rates in (separate, together))

    def wait(self, tokens: float, own: int) -> float:
        """Returns about how much later `own` tokens are computed after `tokens` of others than on an idle worker.

        0 if no rate was measured yet.
        """
        if not self._measured:
            return 0.0
        rates = self._effective
        soonest = min((self._tokens[name] + own) / rates[name] for name in rates)
        return tokens / sum(rates.values()) + soonest - own / max(self._rates.values())

    def own_seconds(self, tokens: int, to_compute: int) -> float:
        """Returns about how many seconds a worker takes for a prompt of `tokens`; 0 if no rate was measured yet."""
        if not self._measured:
            return 0.0
        seconds = [scorers.compute_seconds(cost, tokens, to_compute) for cost in self._costs if cost is not None]
        return min(seconds, default=to_compute / max(self._effective.values()))

    def _seconds(self, tokens: int, rates: Mapping[str, float]) -> float:
        return (sum(self._tokens[name] for name in rates) + tokens) / sum(rates.values())

    def _fits(self, name: str, tokens: int, most: float) -> bool:
        return not self._tokens[name] or self._tokens[name] + tokens <= most
