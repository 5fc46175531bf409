"""Pods come and go under streams: none fails, and all say what they would have said."""

import helm
import pytest
from kube import Namespace
from load import Load
from service import Service


def test_a_pool_is_scaled_down_while_the_operator_restarts(service: Service, load: Load, release: Namespace) -> None:
    service.scale("decode", 1)
    helm.restart_operator(release)
    service.until_pods("decode", 1)
    load.until_more(8)
    helm.until_operating(release)


@pytest.mark.parametrize("role", ["prefill", "decode", "gateway"])
def test_a_pod_is_deleted(service: Service, load: Load, role: str) -> None:
    victim, *_ = service.found(role)
    service.namespace.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
    service.until_gone(victim)
    service.until_pods(role, 2)
    load.until_more(8)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_pod_is_killed(service: Service, load: Load, role: str) -> None:
    victim, *_ = service.found(role)
    service.namespace.kubectl("delete", "pod", victim["metadata"]["name"], "--grace-period=0", "--force")
    service.until_gone(victim)
    service.until_pods(role, 2)
    load.until_more(8)
