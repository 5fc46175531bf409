"""Sends a command's orders to a service: to `legato up` over its socket, to Kubernetes with the user's kubeconfig.

Both have the same answers, because `operations` makes them.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from legato_cli.errors import ServiceUnavailable

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]  # raises ServiceUnavailable
NAME_REQUIRED = "--service is required with --namespace"


def ask(namespace: str | None, service: str | None, order: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the service's answer. Raises ServiceUnavailable."""
    with opened(namespace, service) as asked:
        return asked(order)


@contextlib.contextmanager
def opened(namespace: str | None, service: str | None) -> Iterator[Ask]:
    """Opens the named service on Kubernetes if there is a namespace, else the named or only one of `legato up`.

    Raises ServiceUnavailable.
    """
    if namespace is None:
        yield lambda order: _ask_local(service, order)
        return
    if service is None:
        raise ServiceUnavailable(NAME_REQUIRED)
    with _on_kubernetes(namespace, service) as asked:
        yield asked


def _ask_local(service: str | None, order: Mapping[str, Any]) -> dict[str, Any]:
    from legato_cli.local import admin

    try:
        return _accepted(admin.ask(service, order))
    except (admin.NotRunning, admin.CannotListen, OSError) as error:
        raise ServiceUnavailable(str(error)) from None


@contextlib.contextmanager
def _on_kubernetes(namespace: str, service: str) -> Iterator[Ask]:
    import asyncio

    from legato_cli.services.operations import Operations
    from legato_operator.clock import SystemClock
    from legato_operator.cluster import Ref
    from legato_operator.kubernetes.client import connection
    from legato_operator.kubernetes.client.api import KubernetesCluster
    from legato_protocol import names

    try:
        client = connection.client(connection.load())
    except connection.NoConnection as error:
        raise ServiceUnavailable(str(error)) from None
    with asyncio.Runner() as runner, contextlib.closing(KubernetesCluster(client)) as cluster:
        operations = Operations(cluster, Ref(names.INFERENCE_SERVICE, namespace, service), SystemClock())
        yield lambda order: _accepted(runner.run(operations.answer(order)))


def _accepted(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise ServiceUnavailable(str(answer["error"]))
    return answer
