"""Selects the service: one of `legato up`, or one on Kubernetes."""

import contextlib
from contextlib import AbstractAsyncContextManager

from legato_cli.errors import ServiceUnavailable
from legato_cli.services.asking import NAME_REQUIRED
from legato_cli.ui.target import TargetSource


def source(namespace: str | None, service: str | None) -> AbstractAsyncContextManager[TargetSource]:
    """Returns a source for the service on Kubernetes if there is a namespace, else for the named or only `legato up`.

    Raises ServiceUnavailable.
    """
    if namespace is None:
        from legato_cli.ui.local import LocalSource

        return contextlib.nullcontext(LocalSource(service))
    if service is None:
        raise ServiceUnavailable(NAME_REQUIRED)
    from legato_cli.ui import kubernetes

    return kubernetes.source(namespace, service)
