"""One of a worker's ranks dies under streams: the worker starts its ranks again, and no stream notices."""

import itertools

import kube
import pytest
import ranked
from helm import Release
from kube import Namespace
from load import ASK, Load
from service import Service


@pytest.fixture(scope="module")
def service(release: Release, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Service:
    service = ranked.apply(namespace, "ranked", tmp_path_factory.mktemp("model"))
    service.until_settled()
    service.until_gateways_ready()
    return service


@pytest.fixture
def settled(service: Service) -> Service:
    return service


def test_a_rank_is_killed(service: Service, load: Load) -> None:
    (before,) = service.found("decode")
    worker = before["metadata"]["name"]
    assert service.object()["status"]["pools"]["decode"]["ranks"] == 2
    ask = ASK | {"max_tokens": 8000}
    with service.client.completions.create(model=service.name, prompt="On and on", **ask) as long:
        list(itertools.islice(long, 4))  # the worker decodes it; all others may be in hand-offs when the rank dies
        assert ranked.kill_ranks(service, worker) == 1
        kube.until(lambda: "worker_lost" in _retried(service), "the condition names the retries")
    kube.until(lambda: ranked.core_restarts(service, worker) == 1, "the worker has started again")
    service.until_pods("decode", 1)
    (after,) = service.found("decode")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [container["restartCount"] for container in after["status"]["containerStatuses"]] == [0]


def _retried(service: Service) -> str:
    """Returns the condition's message about retried requests; empty if it has none."""
    condition = service.condition("GatewayReady")
    return condition["message"] if condition.get("reason") == "RequestsRetried" else ""
