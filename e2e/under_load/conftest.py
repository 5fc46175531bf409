"""A service of paced workers for all that is done to it in a file, with streams that must not notice."""

from collections.abc import Iterator

import paced
import pytest
from kube import Namespace, Object
from load import Load, answers
from service import Service

ROLES = ("prefill", "decode", "gateway")


@pytest.fixture(scope="module")
def pods() -> Object:
    """More of the `spec` of the service's pods."""
    return {}


@pytest.fixture(scope="module")
def service(network: None, namespace: Namespace, pods: Object) -> Service:
    namespace.apply(paced.manifest("steady", pod=pods, gateway={"replicas": 2}))
    service = Service(namespace, "steady")
    service.until_ready()
    service.until_gateways_ready()
    return service


@pytest.fixture
def settled(service: Service) -> Service:
    """Two pods of each role, and nothing on its way."""
    for role in ("prefill", "decode"):
        service.scale(role, 2)
    for role in ROLES:
        service.until_pods(role, 2)
    service.until_settled()
    return service


@pytest.fixture(scope="module")
def undisturbed(service: Service) -> dict[str, str]:
    """The texts of streams to which nothing happens."""
    return answers(service.client, service.name)


@pytest.fixture
def load(settled: Service, undisturbed: dict[str, str]) -> Iterator[Load]:
    """Streams that use all workers. None may fail, or say anything else than undisturbed."""
    with Load(settled.client, settled.name, undisturbed) as load:
        yield load
        load.until_more(4)
    assert load.failures == []
