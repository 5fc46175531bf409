"""Selects the service: one of `legato up`, or one on Kubernetes."""

from contextlib import AbstractAsyncContextManager

from legato_cli.services.asking import NAME_REQUIRED
from legato_cli.ui.target import NoTarget, TargetSource


def source(namespace: str | None, service: str | None) -> AbstractAsyncContextManager[TargetSource]:
    """Returns a source for the service on Kubernetes if there is a namespace, else for the named or only one of `legato
    up`.

    Raises NoTarget.
    """
    if namespace is None:
        from legato_cli.ui import local

        return local.source(service)
    if service is None:
        raise NoTarget(NAME_REQUIRED)
    from legato_cli.ui import kubernetes

    return kubernetes.source(namespace, service)
