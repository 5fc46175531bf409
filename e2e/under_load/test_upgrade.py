"""The chart is upgraded while its services answer."""

import shutil
from pathlib import Path

import helm
import kube
import pytest
import yaml
from kube import Namespace
from load import Load
from service import Service

VERSION = "0.0.1"
FIELD = "autoRollback"  # of spec.rollout: the previous version has no such field


def previous_chart(folder: Path) -> Path:
    """This chart as it might have been before: a lower version, and a CRD without one of the fields."""
    copied = folder / "legato"
    shutil.copytree(helm.CHART, copied)
    about = yaml.safe_load((copied / "Chart.yaml").read_text())
    (copied / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": VERSION}))
    file = copied / "files" / "crds" / "inferenceservices.yaml"
    crd = yaml.safe_load(file.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rollout = schema["properties"]["spec"]["properties"]["rollout"]
    del rollout["properties"][FIELD], rollout["default"][FIELD]
    file.write_text(yaml.safe_dump(crd))
    return copied


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
