"""A new revision of the workers replaces the old one under streams, or fails and leaves the old one serving."""

from collections.abc import Callable

import helm
import kube
import pytest
from kube import Namespace, Object
from load import Load
from service import Service

SURGES = {1: {"maxSurge": 1, "maxUnavailable": 0}, 0: {"maxSurge": 0, "maxUnavailable": 1}}
PATIENCE = 400.0  # four models load one or two at a time, while all cores answer streams


def with_image(image: str | None) -> Object:
    """A change to the manifest: the image of all workers, or none of its own."""
    template = {"spec": {"containers": [{"name": "worker", "image": image}]}} if image else None
    return {role: {"template": template} for role in ("prefill", "decode")}


def another_setting(spec: Object) -> Object:
    """Another than it has."""
    return {"engine": {"chunkTokens": 512 if spec["engine"]["chunkTokens"] == 256 else 256}}


def another_tag(spec: Object) -> Object:
    """Another than it has."""
    return with_image(None if spec["decode"].get("template") else helm.next_engine_image())


def roll_out(service: Service, change: Object) -> set[str]:
    """The workers before, after the first of the new ones is there."""
    before = service.workers()
    service.patch(change)
    kube.until(lambda: service.workers() - before, "a worker of the new revision starts")
    return before


def until_rolled_out(service: Service, before: set[str], replicas: int) -> None:
    kube.until(lambda: not before & service.workers(), "every worker is a new one", patience=PATIENCE)
    for role in ("prefill", "decode"):
        service.until_pods(role, replicas, patience=PATIENCE)
    service.until_settled()


def test_a_setting_is_rolled_out_while_the_operator_restarts(service: Service, load: Load, release: Namespace) -> None:
    change = another_setting(service.object()["spec"])
    before = roll_out(service, {**change, "rollout": SURGES[1]})
    helm.restart_operator(release)
    until_rolled_out(service, before, 2)
    load.until_more(8)
    helm.until_operating(release)


# With a surge, the test above has two of each. Which worker goes when, with any numbers, is tested without a cluster.
@pytest.mark.parametrize(("another", "surge", "replicas"), [(another_setting, 0, 1), (another_tag, 0, 2)])
def test_a_revision_is_rolled_out(
    service: Service, load: Load, another: Callable[[Object], Object], surge: int, replicas: int
) -> None:
    for role in ("prefill", "decode"):
        service.scale(role, replicas)
        service.until_pods(role, replicas)
    before = roll_out(service, {**another(service.object()["spec"]), "rollout": SURGES[surge]})
    until_rolled_out(service, before, replicas)
    load.until_more(8)


# The gateway's image has no engine: a worker's process ends as soon as it starts. An image may be missing for a while
# only: that is no verdict yet.
@pytest.mark.parametrize(
    ("image", "reason"),
    [(helm.image("none"), "Retrying"), (helm.image("gateway"), "RolloutFailed")],
    ids=["missing", "crashing"],
)
def test_a_failed_revision_leaves_the_old_one_serving(service: Service, load: Load, image: str, reason: str) -> None:
    before, spec = service.workers(), service.object()["spec"]
    unchanged = {role: {"template": spec[role].get("template")} for role in ("prefill", "decode")}
    service.patch({**with_image(image), "rollout": SURGES[1]})
    try:
        kube.until(lambda: service.condition("Progressing").get("reason") == reason, f"the rollout tells {reason}")
        assert service.condition("Progressing")["status"] == ("True" if reason == "Retrying" else "False")
        assert service.condition("Ready")["status"] == "True"
        assert before <= service.workers(ready=True)
        load.until_more(8)
    finally:
        service.patch(unchanged)
    service.until_settled()
    assert service.workers() == before
