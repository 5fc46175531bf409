"""The items of the deployment checklist, as lines for a manifest and as the page of the documentation."""

from collections.abc import Iterator
from dataclasses import dataclass

from legato_cli.checklist import checks
from legato_cli.checklist.checks import Check, Tick
from legato_operator.api.resources import Spec

_INTRODUCTION = """# Deployment checklist

The items that a service in production needs. `legato doctor -f MANIFEST` prints them for a manifest: each is `done`,
`missing`, `not needed` or `not checked`, with what to do. Only the manifest is read: check the items marked *by hand*
yourself. Items do not change the exit code, because some services need less.

Written by `scripts/golden` from the code.
"""
_BY_HAND = (checks.by_hand, checks.gpu_nodes, checks.references_exist)  # these never return DONE


@dataclass(frozen=True, slots=True)
class Item:
    """One item: its name, the part of the documentation that explains it, what to do, and how it is checked."""

    name: str
    page: str
    todo: str
    check: Check = checks.by_hand


def lines(spec: Spec) -> Iterator[str]:
    """Yields a line per item, with what to do if it is missing or not checked."""
    for item in (item for items in SECTIONS.values() for item in items):
        tick, about = item.check(spec)
        names = f" ({about})" if about else ""
        todo = f": {item.todo}" if tick in (Tick.MISSING, Tick.UNCHECKED) else ""
        yield f"{tick.value:<14} {item.name}{names}{todo}"


def page() -> str:
    """Returns the page of the documentation."""
    return "\n".join([_INTRODUCTION, *(_section(title, items) for title, items in SECTIONS.items())])


def _section(title: str, items: tuple[Item, ...]) -> str:
    rows = [f"| [{item.name}]({item.page}){_mark(item)} | {item.todo} |" for item in items]
    return "\n".join([f"## {title}\n", "| item | what to do |", "| --- | --- |", *rows, ""])


def _mark(item: Item) -> str:
    return ", *by hand*" if item.check in _BY_HAND else ""


SECTIONS = {
    "Capacity": (
        Item("Manifest", "settings.md#legato-validate", "correct what `legato validate` reports", checks.valid),
        Item(
            "Memory limits",
            "manifest.md#memory",
            "set `resources.limits.memory` of both pools and of the gateway; workers size themselves by it",
            checks.memory_limits,
        ),
        Item(
            "CPU requests",
            "manifest.md#pools",
            "set `resources.requests.cpu` of both pools, which is also the number of compute threads",
            checks.cpu_requests,
        ),
        Item(
            "Size of the KV cache",
            "manifest.md#memory",
            "set `engine.kvCacheMemory`, to `Auto` or a size",
            checks.given("engine.kv_cache_memory"),
        ),
        Item(
            "Longest sequence",
            "manifest.md#model",
            "set `model.maxLength` to what clients need",
            checks.given("model.max_length"),
        ),
        Item(
            "Objectives",
            "bench.md#operating-envelope",
            "set `slo.ttft` and `slo.tpot`, and measure with `legato bench --matrix` which loads meet them",
            checks.given("slo"),
        ),
        Item(
            "Bounds of the pools",
            "autoscaling.md",
            "set `scaling.prefill` and `scaling.decode` to sizes that the cluster has room for",
            checks.bounds,
        ),
        Item(
            "Quota of the namespace",
            "kubernetes.md#when-something-is-missing",
            "let a ResourceQuota leave room for the largest pools and `rollout.maxSurge`",
        ),
    ),
    "GPUs": (
        Item(
            "GPU resources",
            "gpu.md#pools-with-gpus",
            "name these resources in the chart's `gpuResources`, or their workers compute on CPUs",
            checks.gpu_resources,
        ),
        Item("GPU budget", "manifest.md#limits", "set `scaling.gpuBudget`", checks.gpu_budget),
        Item(
            "Drivers and device plugins",
            "gpu.md#what-a-node-has",
            "run `legato doctor` in a worker's pod on each kind of node with GPUs or RDMA",
            checks.gpu_nodes,
        ),
    ),
    "Model": (
        Item(
            "Storage of the model",
            "manifest.md#model",
            "use `pvc` or `image`, or keep downloads in a `huggingFace.nodeCache` or a volume named `cache`",
            checks.storage,
        ),
        Item(
            "Access token of the hub",
            "manifest.md#model",
            "set `huggingFace.tokenSecret` if the repository is gated or private",
            checks.hub_token,
        ),
        Item(
            "Secrets and claims",
            "kubernetes.md#when-something-is-missing",
            "create them in the service's namespace",
            checks.references_exist,
        ),
    ),
    "Availability": (
        Item("Two gateways", "kubernetes.md#gateways", "set `gateway.replicas` to at least 2", checks.spare_gateway),
        Item(
            "Two decode workers",
            "kubernetes.md#draining-a-node",
            "set `scaling.decode.min` (or `decode.replicas`) to at least 2: a PodDisruptionBudget protects all but one",
            checks.spare_decode,
        ),
        Item(
            "Loss of a prefill worker",
            "manifest.md#where-prompts-are-computed",
            "set `scaling.prefill.min` (or `prefill.replicas`) to at least 2, or `routing.whenPrefillUnavailable` to "
            "`Local`",
            checks.spare_prefill,
        ),
        Item(
            "Failed rollouts",
            "kubernetes.md#when-a-rollout-fails",
            "set `rollout.autoRollback`: `true`, or `false` if a person decides",
            checks.given("rollout.auto_rollback"),
        ),
        Item("Two operators", "kubernetes.md#chart-values", "set the chart's `operator.replicas` to at least 2"),
    ),
    "Clients": (
        Item(
            "API keys",
            "security.md#clients-and-tenants",
            "set `gateway.apiKeys`, or `gateway.trustedProxies` if a proxy authenticates clients",
            checks.api_keys,
        ),
        Item(
            "Quotas",
            "security.md#clients-and-tenants",
            "set `gateway.tenantTokensPerMinute`",
            checks.set_to_something("gateway.tenant_tokens_per_minute"),
        ),
        Item(
            "Longest answer",
            "manifest.md#gateway-routing-and-hand-off",
            "set `gateway.limits.maxOutputTokens`",
            checks.set_to_something("gateway.limits.max_output_tokens"),
        ),
        Item(
            "Longest request",
            "manifest.md#gateway-routing-and-hand-off",
            "set `gateway.maxDuration`; its default is a week",
            checks.set_to_something("gateway.max_duration"),
        ),
        Item(
            "TLS for clients",
            "security.md#tls-for-clients",
            "set `gateway.tls` or `gateway.ingress.tlsSecret`, or let `gateway.httpRoute` name a listener with TLS",
            checks.client_tls,
        ),
        Item(
            "Route from outside",
            "kubernetes.md#routes",
            "set `gateway.httpRoute` or `gateway.ingress` if clients are outside the cluster",
            checks.route,
        ),
        Item(
            "Origins of web pages",
            "security.md#web-pages",
            "name origins in `gateway.allowedOrigins` instead of `*`, or set `gateway.apiKeys`",
            checks.origins,
        ),
    ),
    "Network": (
        Item(
            "TLS between processes",
            "security.md#tls-between-the-services-processes",
            "set `internalTLS`, first with the mode `Permissive`, then `Strict`",
            checks.internal_tls,
        ),
        Item(
            "Network policies",
            "security.md#keep-the-transfer-ports-to-the-services-own-workers",
            "use a network plugin that enforces the NetworkPolicies which the operator writes",
        ),
        Item(
            "Encryption of KV blocks",
            "security.md#hand-offs-with-internal-tls",
            "use a network plugin that encrypts traffic between nodes, if others can read it",
        ),
    ),
    "Monitoring": (
        Item(
            "Metrics and alerts",
            "runbook.md",
            "enable the chart's `monitoring.podMonitor` and `monitoring.prometheusRule`, and send the alerts to people",
        ),
        Item(
            "Access log",
            "settings.md#legato-gateway",
            "collect the gateways' standard output, with a `gateway.accessLog` other than `Off`",
            checks.access_log,
        ),
        Item("Traces", "tracing.md", "set `tracing.endpoint`, or the chart's `tracingEndpoint`", checks.traces),
    ),
    "Versions": (
        Item(
            "Images",
            "kubernetes.md#images",
            "pull by digest: the chart's `images`, and `engine.image` and `gateway.image` if they are set",
            checks.images,
        ),
        Item(
            "Kubernetes",
            "kubernetes.md#install",
            "use 1.30 or newer, and 1.35 for sources of the kind `image`",
        ),
        Item(
            "Upgrades",
            "kubernetes.md#upgrades",
            "decide in the chart's `upgrade` how many services take over a version at a time",
        ),
    ),
}
