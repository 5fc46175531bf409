"""API keys of a Secret: gateways obey them, and another set of them without a restart."""

from collections.abc import Iterator

import api_keys
import kube
import pytest
from api_keys import Key
from openai import AuthenticationError
from service import Service


@pytest.fixture
def restored(service: Service, key: Key) -> Iterator[None]:
    yield
    api_keys.store(service.namespace, key)


def test_another_key_of_the_secret_is_let_in_without_a_restart(service: Service, key: Key, restored: None) -> None:
    before = [_runs(pod) for pod in service.found("gateway")]
    other = api_keys.new("another-team")
    assert _are_let_in(service, key, True)
    assert _are_let_in(service, other, False)
    api_keys.store(service.namespace, key, other)
    service.until_refreshed(lambda: _are_let_in(service, other, True), "the new key is in force")
    api_keys.store(service.namespace, key)
    service.until_refreshed(lambda: _are_let_in(service, other, False), "the new key is not in force any more")
    assert _are_let_in(service, key, True)
    assert [_runs(pod) for pod in service.found("gateway")] == before


def _are_let_in(service: Service, key: Key, yes: bool) -> bool:
    """True if every gateway answers requests with the key, or refuses them."""
    return all(_is_let_in(service, gateway, key) is yes for gateway in service.found("gateway"))


def _is_let_in(service: Service, gateway: kube.Object, key: Key) -> bool:
    client = service.client_of(gateway).with_options(api_key=key.text)
    try:
        client.completions.create(model=service.name, prompt="Hello", max_tokens=1)
    except AuthenticationError:
        return False
    return True


def _runs(pod: kube.Object) -> tuple[str, list[int]]:
    """Returns the pod's UID, and how often its containers were restarted."""
    return pod["metadata"]["uid"], [status["restartCount"] for status in pod["status"]["containerStatuses"]]
