"""Attaches to each pod with TLS the authority that verifies it, from the Secret of its own certificate."""

import asyncio
import base64
import binascii
import dataclasses
from collections.abc import Iterable

from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Cluster, Ref
from legato_operator.errors import ClusterError, Unavailable
from legato_operator.manifests import common
from legato_operator.observing.observed import PeerTLS, Pod
from legato_protocol import names


async def attach(cluster: Cluster, service: InferenceService, pods: Iterable[Pod]) -> list[Pod]:
    """Returns the pods with their authorities. Raises Unavailable.

    A pod whose Secret cannot be read loses its address: without verification, no token may be sent there.
    """
    every = list(pods)
    secrets = sorted({pod.tls_secret for pod in every} - {""})
    read = await asyncio.gather(*(_read(cluster, service, secret) for secret in secrets))
    by_secret = dict(zip(secrets, read, strict=True))
    return [_attach(pod, by_secret.get(pod.tls_secret)) for pod in every]


def _attach(pod: Pod, tls: PeerTLS | None) -> Pod:
    verifiable = tls is not None or not pod.tls_secret
    return dataclasses.replace(pod, tls=tls, address=pod.address if verifiable else "")


async def _read(cluster: Cluster, service: InferenceService, secret: str) -> PeerTLS | None:
    try:
        stored = await cluster.get(Ref("Secret", service.metadata.namespace, secret))
        authority = base64.b64decode(stored["data"][names.TLS_AUTHORITY], validate=True).decode("latin-1")
    except Unavailable:
        raise
    except (ClusterError, KeyError, TypeError, binascii.Error):
        return None
    return PeerTLS(authority, common.internal_tls_name(service))
