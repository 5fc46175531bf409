"""Flags of the operator's process. A pod gets its own name and namespace from its environment."""

import argparse
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from legato_operator.api.quantities import GPU
from legato_protocol import names
from legato_protocol.settings import flags, values
from legato_protocol.settings.flags import Flag, SettingsError

ENV_NAMESPACE = "LEGATO_NAMESPACE"
ENV_POD_NAME = "LEGATO_POD_NAME"
LEASE = "legato-operator"
UPGRADE_SERVICES, UPGRADE_PAUSE = 1, 60.0  # services at a time; seconds
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_IDENTITY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class OperatorSettings:
    """Settings of the operator. Empty `namespaces` means all of the cluster's."""

    engine_image: str
    gateway_image: str
    lease_namespace: str
    identity: str
    lease_name: str = LEASE
    namespaces: tuple[str, ...] = ()
    ignored_namespaces: tuple[str, ...] = ()
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    gpu_resources: tuple[str, ...] = (GPU,)
    upgrade_services: int = UPGRADE_SERVICES
    upgrade_pause: float = UPGRADE_PAUSE
    tracing_endpoint: str = ""
    http_port: int = names.OPERATOR_PORT
    own_namespace: str = ""  # empty if the operator is not a pod
    token_role: str = ""
    service_account: str = ""
    token_lifetime: int = 30  # days; 0: services' tokens are rotated only on request


def _image(text: str) -> str:
    if not text or not text.isprintable() or " " in text:
        raise values.invalid("image", text, "a name without spaces, such as registry.example/legato/engine:0.1.0")
    return text


def _resource(text: str) -> str:
    if not _RESOURCE.fullmatch(text):
        raise values.invalid("resource", text, f"DOMAIN/NAME, such as {GPU}")
    return text


def _endpoint(text: str) -> str:
    if not re.fullmatch(values.COLLECTOR, text):
        raise values.invalid("address", text, "http:// or https:// and a host, such as http://otel-collector:4318")
    return text


def _identity(text: str) -> str:
    if not _IDENTITY.fullmatch(text):
        raise values.invalid(
            "name", text, "at most 253 letters, digits, -, _ and ., with a letter or digit at both ends"
        )
    return text


_NAMESPACE: Final = flags.kubernetes_name("NAMESPACE")
_IMAGE: Final = flags.ValueKind("IMAGE", _image)

_FLAGS: Final = (
    Flag("--engine-image", _IMAGE, "image of workers"),
    Flag("--gateway-image", _IMAGE, "image of gateways"),
    Flag("--namespace", _NAMESPACE, "watch this namespace only; all if not given", "namespaces", repeated=True),
    Flag(
        "--ignore-namespace",
        _NAMESPACE,
        "leave this namespace's services to another operator; not with --namespace",
        "ignored_namespaces",
        repeated=True,
    ),
    Flag(
        "--image-pull-policy",
        flags.one_of("POLICY", PULL_POLICIES),
        f"image pull policy of all pods: {', '.join(PULL_POLICIES)}",
    ),
    Flag("--image-pull-secret", flags.text("SECRET"), "pull secret of all pods", "image_pull_secrets", repeated=True),
    Flag(
        "--gpu-resource",
        flags.ValueKind("RESOURCE", _resource),
        f"a resource that is a GPU, for budgets and devices; {GPU} if not given",
        "gpu_resources",
        repeated=True,
    ),
    Flag(
        "--upgrade-services",
        flags.whole("NUMBER", 0, 10_000),
        "services at a time whose pods are replaced because the operator's version or settings changed; 0: none",
    ),
    Flag(
        "--upgrade-pause",
        flags.DURATION,
        "time that a service must be ready afterwards before the next one is upgraded",
    ),
    Flag(
        "--tracing-endpoint",
        flags.ValueKind("URL", _endpoint),
        "OTLP collector for traces of services whose manifest names none",
    ),
    Flag(
        "--lease-namespace",
        _NAMESPACE,
        f"namespace of the leader's Lease; ${ENV_NAMESPACE} if not given",
        optional=True,
    ),
    Flag("--lease-name", flags.kubernetes_name("NAME"), "the leader's Lease; each release has its own"),
    Flag(
        "--identity",
        flags.ValueKind("NAME", _identity),
        f"holder of the Lease; ${ENV_POD_NAME}, or host and process id, if not given",
        optional=True,
    ),
    Flag("--http-port", flags.PORT_OR_FREE, "port of /healthz, /readyz and /metrics; 0 takes a free one"),
    Flag(
        "--token-role",
        flags.text("NAME"),
        "ClusterRole with permissions for Secrets, which it binds to itself in namespaces with services",
    ),
    Flag(
        "--token-lifetime",
        flags.whole("DAYS", 0, 3650),
        "replace services' tokens at this age; 0: only on request",
    ),
    Flag("--service-account", flags.text("NAME"), "its own ServiceAccount, in --lease-namespace: it owns the Lease"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `legato operator`. argparse checks single values, and `read` combinations of flags."""
    flags.add(parser, _FLAGS, OperatorSettings)
    parser.add_argument(
        "--check-no-services",
        action="store_true",
        help="exit immediately: with 1 if services of its namespaces are left",
    )


def read(given: argparse.Namespace, environment: Mapping[str, str]) -> OperatorSettings:
    """Returns the settings. Raises SettingsError."""
    values = flags.given(given, OperatorSettings)
    own = environment.get(ENV_NAMESPACE, "")
    defaults = {
        "lease_namespace": own,
        "identity": environment.get(ENV_POD_NAME, "") or f"{socket.gethostname()}-{os.getpid()}",
    }
    settings = OperatorSettings(**defaults | values, own_namespace=own)
    _check_together(settings)
    return settings


def _check_together(settings: OperatorSettings) -> None:
    if settings.namespaces and settings.ignored_namespaces:
        raise SettingsError("--namespace and --ignore-namespace cannot be given together")
    if not settings.lease_namespace:
        raise SettingsError(f"--lease-namespace is required if {ENV_NAMESPACE} is not set")
    if settings.token_role and not settings.service_account:
        raise SettingsError("--token-role needs --service-account")
