"""One service of paced workers with two gateways. Every test leaves it as it found it."""

from collections.abc import Iterator

import kube
import paced
import pytest
from helm import Release
from kube import Namespace
from service import Service


@pytest.fixture(scope="session")
def space(release: Release) -> Iterator[Namespace]:
    with kube.namespace("e2e-shared") as made:
        yield made


@pytest.fixture(scope="session")
def service(space: Namespace) -> Service:
    space.apply(paced.manifest("shared", gateway={"replicas": 2}))
    service = Service(space, "shared")
    service.until_settled()
    service.until_gateways_ready()
    return service
