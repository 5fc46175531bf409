"""A new revision of the workers replaces the old one under streams, or fails and leaves the old one serving."""

import helm
import kube
import pytest
from helm import Release
from kube import Object
from load import Load
from service import Service

CANARY = {"weight": 50, "interval": "10s", "minRequests": 10}
SURGES = {1: {"maxSurge": 1, "maxUnavailable": 0}, 0: {"maxSurge": 0, "maxUnavailable": 1}}

pytestmark = pytest.mark.usefixtures("operator")


def with_image(service: Service, image: str) -> Object:
    """Returns a change to the manifest: another image of all workers."""
    return {role: {"template": _with_image(service, role, image)} for role in ("prefill", "decode")}


def _with_image(service: Service, role: str, image: str) -> Object:
    template: Object = service.object()["spec"][role]["template"]
    (worker,) = template["spec"]["containers"]
    return {"spec": {**template["spec"], "containers": [{**worker, "image": image}]}}


def roll_out(service: Service, change: Object) -> set[str]:
    """Returns the workers before, once the first of the new ones is there."""
    before = service.workers()
    service.patch(change)
    kube.until(lambda: service.workers() - before, "a worker of the new revision starts")
    return before


def until_rolled_out(service: Service, before: set[str]) -> None:
    kube.until(lambda: not before & service.workers(), "every worker is a new one")
    for role in ("prefill", "decode"):
        service.until_pods(role, 2)
    service.until_settled()


def test_a_failed_revision_leaves_the_old_one_serving(service: Service, load: Load) -> None:
    """The gateway's image has no engine, so a worker's process ends as soon as it starts."""
    before, spec = service.workers(), service.object()["spec"]
    service.patch({**with_image(service, helm.image("gateway")), "rollout": SURGES[1]})
    try:
        kube.until(lambda: service.condition("Progressing").get("reason") == "RolloutFailed", "the rollout has failed")
        assert service.condition("Progressing")["status"] == "False"
        service.until_ready()
        kube.until(lambda: before <= service.workers(ready=True), "all of the old revision serve")
        load.until_more(4)
    finally:
        service.patch({role: {"template": spec[role]["template"]} for role in ("prefill", "decode")})
    service.until_settled()
    assert service.workers() == before


def test_a_setting_is_rolled_out_while_the_operator_restarts(service: Service, load: Load, operator: Release) -> None:
    before = roll_out(service, {"engine": {"chunkTokens": 128}, "rollout": SURGES[1]})
    operator.restart_operator()
    until_rolled_out(service, before)
    operator.until_operating()


def test_a_slow_revision_is_rolled_back_and_a_good_one_promoted(service: Service, load: Load) -> None:
    before, profile = service.workers(), service.object()["spec"]["engine"]["profile"]
    service.patch({"engine": {"profile": "/profiles/slow.json"}, "rollout": {**SURGES[1], "canary": CANARY}})
    try:
        service.until_event("CanaryFailed")
        kube.until(lambda: service.workers() == before, "the slow workers are gone")
        service.patch({"engine": {"profile": profile, "chunkTokens": 64}})
        until_rolled_out(service, before)
        service.until_event("CanaryPromoting")
    finally:
        service.patch({"engine": {"profile": profile}, "rollout": {"canary": None}})


# Which worker goes when, with any numbers, is tested without a cluster.
def test_an_image_is_rolled_out_without_a_surge(service: Service, load: Load) -> None:
    before = roll_out(service, {**with_image(service, helm.next_engine_image()), "rollout": SURGES[0]})
    until_rolled_out(service, before)
