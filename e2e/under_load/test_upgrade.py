"""The chart is upgraded while its services answer."""

from pathlib import Path

import helm
import kube
import pytest
from kube import Namespace
from load import Load
from previous_version import FIELD, previous_chart
from service import Service


@pytest.fixture
def previous(settled: Service, release: Namespace, tmp_path: Path) -> None:
    """The previous version of the chart is installed."""
    helm.upgrade(previous_chart(tmp_path), release)
    settled.until_settled()


def keeps_field(service: Service) -> bool:
    """Whether the API server does not throw it away."""
    service.patch({"rollout": {FIELD: True}})
    return FIELD in service.object()["spec"]["rollout"]


def test_the_chart_is_upgraded_with_its_crd(previous: None, service: Service, load: Load, release: Namespace) -> None:
    assert not keeps_field(service)
    operators, workers = helm.operators(release), service.workers()
    helm.upgrade(helm.CHART, release)
    assert not {*operators} & {*helm.operators(release)}
    kube.until(lambda: keeps_field(service), "the CRD is the new one")
    service.until_settled()
    load.until_more(8)
    assert service.workers() == workers
    service.patch({"rollout": {FIELD: None}})
