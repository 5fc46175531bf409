"""A cluster with one service, planned by the operator: pods come up, fail and go in any order.

All that the operator knows is in that world, and a pass may break off after any of its actions: each one is a restart.
"""

import dataclasses
import datetime
import functools
import json
import math

from planned import observed, report

from legato_operator.api import conditions, parsing
from legato_operator.manifests import placement
from legato_operator.manifests.pods import devices
from legato_operator.observing.observed import Pod, WorkerState
from legato_operator.planning.actions import Apply, Delete, DrainWorker, PatchStatus, RecallWorker, SetCanary
from legato_operator.planning.plan import plan
from legato_protocol.settings import durations
from legato_protocol.wire.canary import CanaryReport, RevisionReport

PLACEMENT = placement.local(("legato",))
POOLS = ("prefill", "decode")
GOOD, OTHER, BROKEN = 512, 256, 333


@functools.cache
def _service(chunk, surge, unavailable, rollback, scaling, gpus, canary):
    """`scaling` and `canary` are fields of `spec.scaling` and of `spec.rollout.canary` as JSON."""
    pools = zip(POOLS, gpus, strict=True)
    spec = {
        "model": {"source": {"builtin": "smollm2-135m-instruct"}},
        "engine": {"chunkTokens": chunk},
        "gateway": {"defaultDeadline": f"{chunk}s"},
        "scaling": {"mode": "External", **json.loads(scaling)},
        "rollout": {"maxSurge": surge, "maxUnavailable": unavailable, "autoRollback": rollback, **json.loads(canary)},
        **{pool: {"resources": {"requests": {"nvidia.com/gpu": count}}} for pool, count in pools if count},
    }
    header = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "demo"}}
    return parsing.read_service(header | {"spec": spec})


class World:
    """`broken` are the pools whose pods fail with the broken setting, the gateway's too; `scaling` are fields of
    `spec.scaling`, and `gpus` those of a worker of each pool. Gateways report what `measured` says of the old and the
    new revision of a canary.
    """

    def __init__(self, targets, bounds, rollback=False, broken=POOLS, scaling=None, gpus=(0, 0), canary=None):
        self.targets = dict(zip(POOLS, targets, strict=True))
        self.surge, self.unavailable = bounds
        self.broken = broken
        self._rollback = rollback
        self._scaling, self.gpus, self.canary = scaling or {}, gpus, canary
        self.now, self.shares, self.measured = 1000.0, {}, (RevisionReport(), RevisionReport())
        self.pods, self._objects, self.status, self._chunks, self._made = {}, {}, {}, {}, 0
        self.edit(GOOD)

    def edit(self, chunk, gpus=None):
        self.chunk = chunk
        self.gpus = gpus or self.gpus
        scaling = json.dumps(self._scaling)
        canary = json.dumps({"canary": self.canary} if self.canary is not None else {})
        self.service = _service(chunk, self.surge, self.unavailable, self._rollback, scaling, self.gpus, canary)

    def allowed(self, pool):
        """Most workers above and below a pool's target, in numbers."""
        up, down = (
            rounded(self.targets[pool] * int(bound[:-1]) / 100) if isinstance(bound, str) else bound
            for bound, rounded in ((self.surge, math.ceil), (self.unavailable, math.floor))
        )
        return up, down if up or down else 1

    def rescale(self, scaling):
        self._scaling = scaling
        self.edit(self.chunk)

    def scale(self, pool, replicas):
        self.targets[pool] = replicas

    def look(self, broken_off=None):
        """A pass of the operator; of `broken_off`, only so many actions of it happen."""
        for _ in self.steps(broken_off):
            pass
        return self.made

    def steps(self, broken_off=None):
        """The same, with a stop after each action. `made` is its plan."""
        for (kind, _), item in self._objects.items():
            if kind == "WorkerPool":
                item["spec"]["replicas"] = self.targets[item["spec"]["role"]]
        made = self.made = plan(self._observed(), PLACEMENT)
        actions = [action for phase in made.phases for action in phase.actions]
        for action in actions[:broken_off]:
            self._take(action)
            yield action
        if broken_off is None or broken_off > len(actions):
            self.status = made.status

    def staying(self, pool):
        return [pod for pod in self.pods.values() if pod.pool == pool and not pod.on_its_way_out]

    def ready(self, pool):
        return [pod for pod in self.staying(pool) if pod.ready]

    def chunks(self, pool):
        """The settings of ready pods that stay, by which revisions are told apart; a gateway's is another one."""
        return {self._chunks[pod.name] for pod in self.ready(pool)}

    def paired(self):
        """The settings with which both pools can serve together: no gateway asks workers of one that it fails with."""
        unasked = {BROKEN} if "gateway" in self.broken else set()
        return (self.chunks("prefill") & self.chunks("decode")) - unasked

    def existing(self, pool):
        return sum(pod.pool == pool for pod in self.pods.values())

    def starting(self):
        return [pod for pod in self.pods.values() if not (pod.ready or pod.leaving or pod.blocked or pod.failed)]

    def come_up(self, pod):
        if pod.pool in self.broken and self._chunks[pod.name] == BROKEN:
            self.pods[pod.name] = dataclasses.replace(pod, blocked="ImagePullBackOff", blocked_for=301.0)
        else:
            up = {"ready": True, "address": "127.0.0.1:1", "unschedulable": False}
            self.pods[pod.name] = dataclasses.replace(pod, **up, state=WorkerState(0, False, "ucx:tcp"))

    def work(self, pod):
        self.pods[pod.name] = dataclasses.replace(pod, state=dataclasses.replace(pod.state, busy=1))

    def rest(self):
        for pod in [pod for pod in self.pods.values() if pod.state]:
            self.pods[pod.name] = dataclasses.replace(pod, state=dataclasses.replace(pod.state, busy=0))

    def find_no_node(self, pod):
        """Until it comes up after all."""
        self.pods[pod.name] = dataclasses.replace(pod, unschedulable=True)

    def crash(self, pod):
        self.pods[pod.name] = dataclasses.replace(pod, ready=False, address="", state=None)

    def end(self, pod):
        """For good: nothing starts its process again."""
        self.pods[pod.name] = dataclasses.replace(pod, ready=False, address="", state=None, failed=True, age=60.0)

    def going(self):
        return [pod for pod in self.pods.values() if pod.leaving]

    def go(self, pod):
        del self.pods[pod.name]

    def settle(self):
        """Completes starts and ends of pods, until nothing changes any more."""
        for _ in range(200):
            before = (dict(self.pods), self.status)
            self.look()
            for pod in self.going():
                self.go(pod)
            for pod in self.starting():
                self.come_up(pod)
            self.rest()
            if before == (self.pods, self.status):
                return
        raise AssertionError(f"no end: {sorted(self.pods)}")

    def progressing(self):
        found = conditions.find(self.status, "Progressing")
        return found["status"], found["reason"]

    def message(self):
        return conditions.find(self.status, "Progressing")["message"]

    def _observed(self):
        pods = [self._reporting(pod) for pod in sorted(self.pods.values(), key=lambda pod: pod.created)]
        timestamp = datetime.datetime.fromtimestamp(self.now, datetime.UTC).isoformat()
        more = {"status": self.status, "now": self.now, "timestamp": timestamp}
        return observed(self.service, self._objects.values(), pods, **more)

    def _reporting(self, pod):
        if pod.pool != "gateway" or not pod.ready:
            return pod
        share = self.shares.get(pod.uid)
        made = report(canary=CanaryReport(share, *self.measured) if share else None)
        return dataclasses.replace(pod, report=made)

    def _take(self, action):
        match action:
            case Apply(item, manager, _):
                self._apply(item, manager)
            case SetCanary(name, _, canary):
                self.shares[self.pods[name].uid] = canary
            case DrainWorker(name, _):
                pod = self.pods[name]
                self.pods[name] = dataclasses.replace(pod, state=dataclasses.replace(pod.state, draining=True))
            case RecallWorker(item, name, _):
                pod = self.pods[name]
                if not pod.leaving:  # else its process refuses
                    assert item["metadata"]["uid"] == pod.uid
                    state = dataclasses.replace(pod.state, draining=False)
                    self.pods[name] = dataclasses.replace(pod, state=state, draining_since=None)
            case Delete(ref, _) if ref.kind == "Pod":
                self.pods[ref.name] = dataclasses.replace(self.pods[ref.name], leaving=True, ready=False)
            case Delete(ref, _):
                del self._objects[ref.kind, ref.name]
            case PatchStatus(ref, status, _):
                self._objects[ref.kind, ref.name]["status"] = dict(status)

    def _apply(self, item, manager):
        kind, name = item["kind"], item["metadata"]["name"]
        if kind != "Pod" and manager == "legato-operator":
            metadata = {**item["metadata"], "uid": f"uid-{name}", "generation": 1}
            self._objects[kind, name] = {**item, "metadata": metadata, "spec": dict(item.get("spec", {}))}
        elif manager == "legato-drain":
            self.pods[name] = dataclasses.replace(self.pods[name], draining_since=1000.0)
        elif kind == "Pod":
            assert name not in self.pods
            self._made += 1
            labels, command = item["metadata"]["labels"], item["spec"]["containers"][0]["command"]
            pool, revision = labels["serving.legato.dev/role"], labels["serving.legato.dev/pod-revision"]
            held = devices.requested(item["spec"])
            made = f"{self._made:06}"
            self.pods[name] = Pod(name, f"uid-{self._made}", pool, revision, made, False, False, devices=held)
            flag, read = ("--chunk-tokens", int) if pool in POOLS else ("--default-deadline", durations.parse)
            self._chunks[name] = int(read(command[command.index(flag) + 1]))
