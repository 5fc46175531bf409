"""One service of paced workers with two gateways, API keys and traces. Every test leaves it as it found it."""

from collections.abc import Iterator

import api_keys
import collector
import kube
import paced
import pytest
from api_keys import Key
from helm import Release
from kube import Namespace
from service import Service


@pytest.fixture(scope="session")
def space(release: Release) -> Iterator[Namespace]:
    with kube.namespace("e2e-shared") as made:
        yield made


@pytest.fixture(scope="session")
def key() -> Key:
    """The key of the service's client."""
    return api_keys.new("steady")


@pytest.fixture(scope="session")
def service(space: Namespace, key: Key) -> Service:
    api_keys.store(space, key)
    tracing = {"endpoint": collector.start(space)}
    gateway = {"replicas": 2, "apiKeys": {"secret": api_keys.SECRET}}
    space.apply(paced.manifest("shared", gateway=gateway, tracing=tracing))
    service = Service(space, "shared")
    service.key = key.text
    service.until_settled()
    service.until_gateways_ready()
    return service
