"""Which service is shown: one of `legato up`, or one on Kubernetes."""

from contextlib import AbstractAsyncContextManager

from legato_cli.services.asking import NAME_REQUIRED
from legato_cli.ui.target import NoTarget, TargetSource


def source(namespace: str | None, service: str | None) -> AbstractAsyncContextManager[TargetSource]:
    """With a namespace, the service of that name on Kubernetes; else the one named, or the only one, of `legato up`.
    Raises NoTarget."""
    if namespace is None:
        from legato_cli.ui import local

        return local.source(service)
    if service is None:
        raise NoTarget(NAME_REQUIRED)
    from legato_cli.ui import kubernetes

    return kubernetes.source(namespace, service)
