"""API keys of a Secret: a gateway obeys them, and another set of them without a restart."""

import json
import sys
from collections.abc import Callable

import kube
import pytest
from kube import Namespace
from openai import AuthenticationError
from service import Service

SECRET = "keys"


def new_key(tenant: str) -> tuple[str, str]:
    """A key, and the file with its hash, as `legato api-key` prints them."""
    first, second = kube.run(sys.executable, "-m", "legato_cli.main", "api-key", tenant).splitlines()
    return first.partition(": ")[2].strip(), second.partition(": ")[2].strip()


def store(namespace: Namespace, file: str) -> None:
    text = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"api-keys.json": file}}
    namespace.apply(json.dumps(text))


def is_let_in(service: Service, key: str) -> bool:
    """Whether a request with it is answered."""
    try:
        service.client.with_options(api_key=key).completions.create(model=service.name, prompt="Hello", max_tokens=1)
    except AuthenticationError:
        return False
    return True


@pytest.fixture(scope="module")
def key(namespace: Namespace) -> str:
    """The one in force when the service begins."""
    key, file = new_key("team-a")
    store(namespace, file)
    return key


@pytest.fixture(scope="module")
def keyed(key: str, serve: Callable[..., Service]) -> Service:
    service = serve("keyed", gateway={"apiKeys": {"secret": SECRET}})
    service.until_settled()
    return service


def test_only_the_key_of_the_secret_is_let_in(keyed: Service, key: str) -> None:
    other, _ = new_key("team-a")
    assert not is_let_in(keyed, other)
    assert is_let_in(keyed, key)


def test_a_key_that_takes_the_place_of_another_needs_no_restart(keyed: Service, key: str, namespace: Namespace) -> None:
    before = [_runs(pod) for pod in keyed.found("gateway")]
    other, file = new_key("team-b")
    store(namespace, file)
    keyed.until_refreshed(lambda: is_let_in(keyed, other), "the new key is in force")
    assert not is_let_in(keyed, key)
    assert [_runs(pod) for pod in keyed.found("gateway")] == before


def _runs(pod: kube.Object) -> tuple[str, list[int]]:
    """The pod, and how often its containers were started anew."""
    return pod["metadata"]["uid"], [status["restartCount"] for status in pod["status"]["containerStatuses"]]
