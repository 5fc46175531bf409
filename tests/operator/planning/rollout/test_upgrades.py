"""Another version of the operator: what it makes anew of a manifest waits for a turn; what a user changes does not."""

import copy
import dataclasses
import itertools

import pytest
from planned import actions, observed, pod

from legato_operator.api import conditions
from legato_operator.manifests import common, placement
from legato_operator.manifests.pods import gateway, worker
from legato_operator.planning.actions import Apply, Delete
from legato_operator.planning.plan import plan

OLD = placement.kubernetes(placement.Containers("engine:1", "gateway:1"))
NEW = placement.kubernetes(placement.Containers("engine:2", "gateway:2"))
SERVING = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "observedGeneration": 1}


class Service:
    """A service on a cluster without surprises: what is applied is there, and pods are ready at once."""

    def __init__(self, item):
        self.item, self.objects, self.pods, self.status = item, {}, {}, {}
        self.generation, self.made_with, self.clock = 1, {}, itertools.count()
        self.pods_are_ready = True

    def edit(self, item):
        self.item, self.generation = item, self.generation + 1

    def observed(self):
        changes = {"generation": self.generation, "status": self.status, "written": self.item["spec"]}
        objects = [self.objects[key] for key in sorted(self.objects)]  # as lists of a cluster are
        return observed(self.item, objects, self.pods.values(), **changes)

    def step(self, by):
        made = plan(self.observed(), by)
        for action in actions(made, object):
            self._carry_out(action)
        self.status = {**self.status, **made.status}
        return made

    def settle(self, by, passes=40):
        for _ in range(passes):
            before = copy.deepcopy((self.objects, self.pods))
            self.step(by)
            if (self.objects, self.pods) == before:
                return
        raise AssertionError("it does not settle")

    def _carry_out(self, action):
        if isinstance(action, Delete):
            held = self.pods if action.ref.kind == "Pod" else self.objects
            held.pop(action.ref.name if action.ref.kind == "Pod" else (action.ref.kind, action.ref.name), None)
        if not isinstance(action, Apply):
            return
        item = copy.deepcopy(dict(action.item))
        key = item["kind"], item["metadata"]["name"]
        if key[0] == "Pod" and action.manager == common.DRAINER:
            self.pods.pop(key[1])  # it drains in no time
        elif key[0] == "Pod":
            self._start(key[1], item)
        elif action.manager == common.SCALER:
            self.objects[key]["spec"]["replicas"] = item["spec"]["replicas"]
        else:
            replicas = self.objects.get(key, {}).get("spec", {}).get("replicas")
            created = self.objects.get(key, {}).get("metadata", {}).get("creationTimestamp") or f"{next(self.clock):09}"
            item["metadata"] |= {"uid": f"uid-{key}", "generation": 1, "creationTimestamp": created}
            if key[0] == "WorkerPool" and replicas is not None:
                item["spec"]["replicas"] = replicas
            if key[0] == "Deployment":
                item["status"] = SERVING
            self.objects[key] = item

    def _start(self, name, item):
        labels = item["metadata"]["labels"]
        self.pods[name] = pod(
            name,
            labels["serving.legato.dev/role"],
            labels["serving.legato.dev/pod-revision"],
            ready=self.pods_are_ready,
        )
        self.made_with[name] = item["spec"]["containers"][0].get("image")  # none on one machine

    def images(self):
        front = self.objects["Deployment", "demo-gateway"]["spec"]["template"]["spec"]["containers"][0]["image"]
        return {**{each.pool: self.made_with[each.name] for each in self.pods.values()}, "gateway": front}

    def upgraded(self):
        found = conditions.find(self.status, "Upgraded")
        return found["status"], found["reason"]


@pytest.fixture
def settled(build):
    """A service that runs what the old version made of it."""
    service = Service(build())
    service.settle(OLD)
    assert service.upgraded() == ("True", conditions.UP_TO_DATE)
    return service


def test_another_version_adopts_running_pods(settled):
    """And keeps their templates: what it starts in the place of a lost one is like those that run."""
    pods = dict(settled.pods)
    settled.settle(NEW)
    assert settled.pods == pods
    assert settled.upgraded() == ("False", conditions.AWAITING_UPGRADE)
    assert conditions.find(settled.status, "Progressing")["reason"] == conditions.UP_TO_DATE
    settled.pods.pop("demo-decode-0")
    settled.settle(NEW)
    assert settled.images() == {"prefill": "engine:1", "decode": "engine:1", "gateway": "gateway:1"}


def test_one_that_waits_says_what_holds_all_turns(settled):
    settled.settle(NEW)
    told = conditions.find(settled.status, "Upgraded")["message"]
    assert told == "its pods stay as they are until it is upgraded"
    found = dataclasses.replace(settled.observed(), upgrades_stopped="no upgrade starts until these are ready: team/a")
    told = conditions.find(plan(found, NEW).status, "Upgraded")
    assert told["reason"] == conditions.AWAITING_UPGRADE
    assert told["message"].endswith("until it is upgraded; no upgrade starts until these are ready: team/a")


def test_a_turn_replaces_all_of_them_and_is_remembered_until_it_is_over(settled):
    settled.settle(NEW)
    settled.status["upgradeTurn"] = {"since": "2026-01-01T00:00:00Z"}
    settled.step(NEW)
    assert settled.upgraded() == ("False", conditions.UPGRADING)
    settled.settle(NEW)
    assert settled.images() == {"prefill": "engine:2", "decode": "engine:2", "gateway": "gateway:2"}
    assert settled.upgraded() == ("True", conditions.UP_TO_DATE)
    del settled.status["upgradeTurn"]
    before = dict(settled.pods)
    settled.settle(NEW)
    assert (settled.pods, settled.upgraded()) == (before, ("True", conditions.UP_TO_DATE))


@pytest.mark.parametrize("change", [{"engine": {"chunkTokens": 64}}, {"gateway": {"defaultDeadline": "1m"}}])
def test_an_edit_takes_the_turn_at_once(settled, build, change):
    settled.settle(NEW)
    settled.edit(build(**change))
    settled.step(NEW)
    assert settled.upgraded() == ("False", conditions.ROLLING_OUT)
    settled.settle(NEW)
    assert settled.images() == {"prefill": "engine:2", "decode": "engine:2", "gateway": "gateway:2"}
    assert settled.upgraded() == ("True", conditions.UP_TO_DATE)


@pytest.mark.parametrize("change", [{"scaling": {"decode": {"min": 1, "max": 2}}}, {"rollout": {"maxSurge": 2}}])
def test_an_edit_that_changes_no_pod_takes_no_turn(settled, build, change):
    settled.settle(NEW)
    pods = dict(settled.pods)
    settled.edit(build(**change))
    settled.settle(NEW)
    assert settled.pods == pods
    assert settled.upgraded() == ("False", conditions.AWAITING_UPGRADE)


def test_an_edit_is_told_from_the_upgrade_in_the_middle_of_its_rollout(settled, build):
    """The manifest that the good pods were made from is kept until others are good."""
    settled.edit(build(engine={"chunkTokens": 64}))
    settled.step(OLD)
    settled.step(NEW)
    assert settled.upgraded() == ("False", conditions.ROLLING_OUT)
    settled.settle(NEW)
    assert settled.images() == {"prefill": "engine:2", "decode": "engine:2", "gateway": "gateway:2"}
    kept = [item for (kind, _), item in settled.objects.items() if kind == "ControllerRevision"]
    assert len(kept) == 4, "three templates and one manifest"


@pytest.mark.parametrize("ready", [False, True])
def test_defaults_that_a_new_crd_adds_leave_one_manifest_that_is_kept(build, ready):
    """The spec that is read is another one, its generation is not; names of what is kept sort either way."""
    service = Service(build())
    service.pods_are_ready = ready
    for default in (2048, 512, 1024, 4096, 512):
        service.item = build(model={**build()["spec"]["model"], "maxLength": default})
        service.settle(OLD)
        kept = [item["data"] for item in service.objects.values() if "-manifest-" in item["metadata"]["name"]]
        assert kept == [service.item["spec"]]


def test_a_third_version_goes_on_with_a_turn_that_has_begun(settled):
    settled.settle(OLD)
    settled.step(NEW)
    settled.status["upgradeTurn"] = {"since": "2026-01-01T00:00:00Z"}
    settled.step(NEW)
    third = placement.kubernetes(placement.Containers("engine:3", "gateway:3"))
    settled.step(third)
    assert settled.upgraded() == ("False", conditions.UPGRADING)
    settled.settle(third)
    assert settled.images()["gateway"] == "gateway:3"


def test_a_failure_in_the_turn_is_told(settled):
    settled.settle(NEW)
    settled.status["upgradeTurn"] = {"since": "2026-01-01T00:00:00Z"}
    settled.step(NEW)
    new = common.revision_of(worker.template(settled.observed().service, "decode", NEW))
    for name, each in settled.pods.items():
        if each.revision == new:
            settled.pods[name] = dataclasses.replace(each, ready=False, refused="no such model")
    settled.step(NEW)
    assert settled.upgraded() == ("False", conditions.UPGRADE_FAILED)
    assert "no such model" in conditions.find(settled.status, "Upgraded")["message"]


def test_templates_that_do_not_tell_their_manifest_wait_where_nothing_moves(settled, build):
    for (kind, _), item in settled.objects.items():
        if kind == "ControllerRevision":
            item["metadata"]["annotations"].pop(common.ANNOTATION_MADE_FROM, None)
    moving = copy.deepcopy(settled)
    pods = dict(settled.pods)
    settled.settle(NEW)
    assert settled.pods == pods
    assert settled.upgraded() == ("False", conditions.AWAITING_UPGRADE)
    moving.pods["demo-decode-0"] = dataclasses.replace(moving.pods["demo-decode-0"], revision="another")
    moving.step(NEW)
    assert moving.upgraded() == ("False", conditions.ROLLING_OUT)


def test_at_zero_the_turn_is_over_with_the_gateway(build):
    service = Service(build(scaling={"prefill": {"min": 0}, "decode": {"min": 0}}))
    service.settle(OLD)
    for role in ("prefill", "decode"):
        service.objects["WorkerPool", f"demo-{role}"]["spec"]["replicas"] = 0
    service.settle(OLD)
    assert not service.pods
    service.settle(NEW)
    assert service.upgraded() == ("False", conditions.AWAITING_UPGRADE)
    service.status["upgradeTurn"] = {"since": "2026-01-01T00:00:00Z"}
    service.settle(NEW)
    assert service.upgraded() == ("True", conditions.UP_TO_DATE)
    del service.status["upgradeTurn"]
    service.settle(NEW)
    front = service.objects["Deployment", "demo-gateway"]["spec"]["template"]["spec"]
    assert front == gateway.template(service.observed().service, NEW)["spec"]


def test_on_one_machine_nothing_waits(build):
    service, here, later = Service(build()), placement.local(("legato",)), placement.local(("legato", "later"))
    service.settle(here)
    service.settle(later)
    revisions = {pod.pool: pod.revision for pod in service.pods.values()}
    assert revisions["decode"] == common.revision_of(worker.template(service.observed().service, "decode", later))
    assert "Upgraded" not in {condition["type"] for condition in service.status["conditions"]}


def test_a_pinned_image_outlives_the_operators_default(build):
    """It is the manifest's, and with it nothing differs that waits for a turn."""
    pinned = {"engine": {"image": "engine:7"}, "gateway": {"image": "registry.example/gateway:7"}}
    service = Service(build(**pinned))
    service.settle(OLD)
    service.settle(NEW)
    assert service.upgraded() == ("True", conditions.UP_TO_DATE)
    made = worker.template(service.observed().service, "decode", NEW)["spec"]["containers"][0]
    front = service.objects["Deployment", "demo-gateway"]["spec"]["template"]["spec"]["containers"][0]
    assert (made["image"], front["image"]) == ("engine:7", "registry.example/gateway:7")
