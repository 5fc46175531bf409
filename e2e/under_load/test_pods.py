"""Pods come and go under streams: none fails, and all say what they would have said."""

import pytest
from helm import Release
from load import Load
from service import Service

pytestmark = pytest.mark.usefixtures("operator")


@pytest.mark.parametrize("role", ["prefill", "decode", "gateway"])
def test_a_pod_is_deleted(service: Service, load: Load, role: str) -> None:
    service.lose(role)
    service.until_pods(role, 2)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_is_killed(service: Service, load: Load, role: str) -> None:
    service.lose(role, grace=0)
    service.until_pods(role, 2)


def test_a_pool_is_scaled_down_while_the_operator_restarts(service: Service, load: Load, operator: Release) -> None:
    service.scale("decode", 1)
    operator.restart_operator()
    service.until_pods("decode", 1)
    operator.until_operating()
