"""The operator is upgraded to another version, with other images, while three services answer."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm
import kube
from kube import Namespace
from previous_version import previous_chart
from restarts import Restarts
from service import Service

SERVICES = ("first", "second", "third")
PATIENCE = 420.0


def upgraded(service: Service) -> bool:
    return service.condition("Upgraded").get("status") == "True"


def test_three_services_take_another_version_over_in_turns(
    release: Namespace, namespace: Namespace, serve: Callable[..., Service], under_load: Any, tmp_path: Path
) -> None:
    """None of their streams fails, and of no pool more than one worker is replaced at a time."""
    helm.upgrade(previous_chart(tmp_path), release)
    services = [serve(name, decode=2) for name in SERVICES]
    try:
        for service in services:
            service.until_settled()
        before = {service.name: service.workers() for service in services}
        with contextlib.ExitStack() as stack:
            loads = [stack.enter_context(under_load(service, streams=3)) for service in services]
            restarts = stack.enter_context(Restarts(namespace))
            tag = helm.next_engine_image().rpartition(":")[2]
            helm.upgrade(helm.CHART, release, f"images.engine.tag={tag}", "upgrade.pause=5s")
            for service in services:
                kube.until(
                    lambda service=service: not before[service.name] & service.workers() and upgraded(service),
                    f"{service.name} has been upgraded",
                    patience=PATIENCE,
                )
                service.until_settled()
            for load in loads:
                load.until_more(3)
        for service in services:
            assert {container_image(pod) for pod in service.found("decode")} == {helm.next_engine_image()}
        assert [load.failures for load in loads] == [[], [], []]
        assert restarts.most_turns == 1
        assert set(restarts.most_starting.values()) == {1}, "each pool was rolled out, one worker at a time"
        assert restarts.fewest_ready == {
            **{(name, "prefill"): 1 for name in SERVICES},
            **{(name, "decode"): 2 for name in SERVICES},
        }
    finally:
        for service in services:
            namespace.kubectl("delete", "inferenceservice", service.name, "--timeout=120s")
        helm.upgrade(helm.CHART, release)


def container_image(pod: kube.Object) -> str:
    return next(str(each["image"]) for each in pod["spec"]["containers"] if each["name"] == "worker")
