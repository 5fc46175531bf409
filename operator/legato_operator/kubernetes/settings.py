"""What the operator's process can be told, as flags. A pod learns its own name and namespace from its environment."""

import argparse
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from legato_operator.api.quantities import GPU
from legato_protocol import names
from legato_protocol.flags import SettingsError

ENV_NAMESPACE = "LEGATO_NAMESPACE"
ENV_POD_NAME = "LEGATO_POD_NAME"
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_IDENTITY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class OperatorSettings:
    """Without `namespaces`: all of the cluster's."""

    namespaces: tuple[str, ...]
    engine_image: str
    gateway_image: str
    image_pull_policy: str
    image_pull_secrets: tuple[str, ...]
    lease_namespace: str
    identity: str
    http_port: int
    ignored_namespaces: tuple[str, ...] = ()
    gpu_resources: tuple[str, ...] = (GPU,)
    own_namespace: str = ""  # empty where it is not a pod
    token_role: str = ""
    service_account: str = ""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Every flag of `legato operator`."""
    parser.add_argument("--namespace", action="append", default=[], help="watch only this (repeatable; default all)")
    parser.add_argument(
        "--ignore-namespace",
        action="append",
        default=[],
        help="leave its services to another operator (repeatable; without --namespace)",
    )
    parser.add_argument("--engine-image", required=True, help="image of workers")
    parser.add_argument("--gateway-image", required=True, help="image of gateways")
    parser.add_argument("--image-pull-policy", choices=PULL_POLICIES, default="IfNotPresent", help="of all its pods")
    parser.add_argument("--image-pull-secret", action="append", default=[], help="of all its pods (repeatable)")
    parser.add_argument(
        "--gpu-resource",
        action="append",
        default=[],
        help=f"a resource that is a GPU, for budgets and devices (repeatable; default {GPU})",
    )
    parser.add_argument("--lease-namespace", help=f"where the leader's Lease is (default: ${ENV_NAMESPACE})")
    parser.add_argument("--identity", help=f"who holds the Lease (default: ${ENV_POD_NAME}, else host and process id)")
    parser.add_argument(
        "--http-port",
        type=int,
        default=names.OPERATOR_PORT,
        help="of /healthz, /readyz, /metrics (default %(default)s)",
    )
    parser.add_argument(
        "--token-role",
        default="",
        help="ClusterRole with rights on Secrets, that it binds to itself where services are",
    )
    parser.add_argument("--service-account", default="", help="its own, in --lease-namespace; with --token-role")


def read(flags: argparse.Namespace, environment: Mapping[str, str]) -> OperatorSettings:
    """The settings. Raises SettingsError."""
    settings = OperatorSettings(
        namespaces=tuple(dict.fromkeys(flags.namespace)),
        engine_image=flags.engine_image,
        gateway_image=flags.gateway_image,
        image_pull_policy=flags.image_pull_policy,
        image_pull_secrets=tuple(dict.fromkeys(flags.image_pull_secret)),
        lease_namespace=flags.lease_namespace or environment.get(ENV_NAMESPACE, ""),
        identity=flags.identity or environment.get(ENV_POD_NAME, "") or f"{socket.gethostname()}-{os.getpid()}",
        http_port=flags.http_port,
        ignored_namespaces=tuple(dict.fromkeys(flags.ignore_namespace)),
        gpu_resources=tuple(dict.fromkeys(flags.gpu_resource)) or (GPU,),
        own_namespace=environment.get(ENV_NAMESPACE, ""),
        token_role=flags.token_role,
        service_account=flags.service_account,
    )
    _check(settings)
    return settings


def _check(settings: OperatorSettings) -> None:
    for flag, namespaces in (("--namespace", settings.namespaces), ("--ignore-namespace", settings.ignored_namespaces)):
        for namespace in namespaces:
            if not _LABEL.fullmatch(namespace):
                raise SettingsError(f"{flag}: {namespace!r} is no name of a namespace")
    if settings.namespaces and settings.ignored_namespaces:
        raise SettingsError("--ignore-namespace means something only without --namespace")
    if not settings.lease_namespace:
        raise SettingsError(f"--lease-namespace is required where {ENV_NAMESPACE} is not set")
    if not _LABEL.fullmatch(settings.lease_namespace):
        raise SettingsError(f"--lease-namespace: {settings.lease_namespace!r} is no name of a namespace")
    if not _IDENTITY.fullmatch(settings.identity):
        raise SettingsError(f"--identity: {settings.identity!r} is no name")
    for flag, image in (("--engine-image", settings.engine_image), ("--gateway-image", settings.gateway_image)):
        if not image or any(character.isspace() for character in image):
            raise SettingsError(f"{flag}: {image!r} is no image")
    for resource in settings.gpu_resources:
        if not _RESOURCE.fullmatch(resource):
            raise SettingsError(f"--gpu-resource: {resource!r} is no name of a device, such as {GPU}")
    if bool(settings.token_role) != bool(settings.service_account):
        raise SettingsError("--token-role and --service-account mean something only together")
    if not 0 <= settings.http_port <= 65535:
        raise SettingsError(f"--http-port: {settings.http_port} is no port")
