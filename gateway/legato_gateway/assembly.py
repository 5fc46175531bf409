"""Builds the parts of a gateway from its settings. Functions raise SettingsError for an unusable file or cluster."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from legato_gateway import generation_config, policy
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.queue import Admission
from legato_gateway.clients.api_keys import KeyFile
from legato_gateway.clients.identify import Quotas
from legato_gateway.discovery.addresses import Discovery, FileDiscovery, StaticDiscovery, WorkerAddress
from legato_gateway.generation_config import NEUTRAL, GenerationDefaults
from legato_gateway.http.connections import limits
from legato_gateway.http.connections.limits import ConnectionLimits
from legato_gateway.http.server import PublicCertificate
from legato_gateway.openai.responses.store import ResponseStore, StorePolicy
from legato_gateway.relay.relay import RelayPolicy
from legato_gateway.relay.retry import RetryPolicy
from legato_gateway.routing.choose import Policy
from legato_gateway.routing.rebalancing import RebalancingPolicy
from legato_gateway.routing.scorers import Objectives, Weights
from legato_gateway.settings import GatewaySettings
from legato_gateway.timers import Timers
from legato_protocol.process.followed_files import InvalidFile
from legato_protocol.security.tls_files import InternalTLS
from legato_protocol.settings.flags import SettingsError

if TYPE_CHECKING:
    from legato_telemetry.spans import Tracing

_log = logging.getLogger(__name__)


def admission(settings: GatewaySettings, keys: KeyFile | None) -> Admission:
    return Admission(
        AdmissionLimits(
            max_queued=settings.max_queued_requests,
            max_queued_tokens=settings.max_queued_tokens,
            objectives=_objectives(settings),
            refuse_beyond=_slo(settings) if settings.when_late == "Refuse" else None,
            quotas=Quotas(dict(settings.tenant_quotas), keys),
        )
    )


def routing(settings: GatewaySettings) -> Policy:
    weights = Weights(
        settings.prefix_cache_weight,
        settings.kv_cache_utilization_weight,
        settings.step_time_weight,
        settings.adapter_weight,
    )
    return Policy(
        settings.local_prefill_below_tokens,
        settings.when_prefill_unavailable,
        weights,
        _objectives(settings),
        settings.kv_sharing,
    )


def _objectives(settings: GatewaySettings) -> Objectives | None:
    """Returns the objectives that decode workers help to meet; None: prompts wait for prefill workers."""
    return (
        policy.helped_objectives(_slo(settings), settings.when_late) if settings.when_prefill_busy == "Local" else None
    )


def _slo(settings: GatewaySettings) -> Objectives:
    return Objectives(settings.slo_ttft, settings.slo_tpot)


def relaying(settings: GatewaySettings) -> RelayPolicy:
    retries = RetryPolicy(settings.transfer_on_failure, settings.on_worker_failure, settings.max_retries)
    return RelayPolicy(settings.slow_client, settings.buffer_tokens, retries, RebalancingPolicy(settings.slo_tpot))


def connection_limits(settings: GatewaySettings, open_files: int) -> ConnectionLimits:
    """`open_files` is the process's limit of file descriptors."""
    return ConnectionLimits(
        most=limits.places(settings.max_connections, open_files),
        head=settings.head_timeout,
        body_rate=settings.min_body_rate,
        idle=settings.idle_timeout,
    )


def defaults(settings: GatewaySettings, model: Path) -> GenerationDefaults:
    """Returns the sampling defaults for requests without values, and logs them. Raises BadGenerationConfig."""
    if settings.generation_config == "None":
        _log.info("sampling defaults are neutral: --generation-config is None")
        return NEUTRAL
    made = generation_config.load(model)
    _log.info("sampling defaults of the model: %s", made)
    return made


def tracing(settings: GatewaySettings, name: str) -> "Tracing | None":
    if not settings.traces:
        return None
    from legato_telemetry.spans import Tracing

    return Tracing("legato-gateway", name, _log.warning)


def response_store(settings: GatewaySettings, timers: Timers) -> ResponseStore | None:
    if settings.response_retention is None:
        return None
    return ResponseStore(StorePolicy(settings.response_retention, settings.response_memory), timers.time)


@contextmanager
def _reading(flag: str) -> Iterator[None]:
    """Converts InvalidFile to a SettingsError that names the flag."""
    try:
        yield
    except InvalidFile as error:
        raise SettingsError(f"{flag} {error}") from None


def api_keys(settings: GatewaySettings) -> KeyFile | None:
    with _reading("--api-keys-file"):
        return KeyFile(settings.api_keys_file) if settings.api_keys_file is not None else None


def certificate(settings: GatewaySettings) -> PublicCertificate | None:
    if settings.tls_certificate_file is None or settings.tls_key_file is None:
        return None
    with _reading("--tls-certificate-file"):
        return PublicCertificate(settings.tls_certificate_file, settings.tls_key_file)


def internal_tls(settings: GatewaySettings) -> InternalTLS | None:
    if settings.internal_tls_folder is None:
        return None
    with _reading("--internal-tls-folder"):
        return InternalTLS(settings.internal_tls_folder, settings.internal_tls_name)


def discovery(settings: GatewaySettings) -> Discovery:
    if settings.workers_file is not None:
        return FileDiscovery(settings.workers_file)
    if settings.workers_service:
        return _on_kubernetes(settings)
    return StaticDiscovery(tuple(WorkerAddress(name, address) for name, address in settings.workers))


def _on_kubernetes(settings: GatewaySettings) -> Discovery:
    from legato_gateway.discovery import kubernetes

    connect = partial(kubernetes.connect, settings.kubeconfig)
    try:
        connect()
    except kubernetes.Unreachable as error:
        raise SettingsError(f"--workers-service {settings.workers_service}: {error}") from None
    tls = settings.internal_tls_folder is not None
    return kubernetes.KubernetesDiscovery(connect, settings.namespace, settings.workers_service, tls=tls)
