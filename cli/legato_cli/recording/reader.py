"""Reads the autoscaler's current signals independently of the autoscaler, for any `scaling.mode`."""

import dataclasses
from collections.abc import Mapping

from legato_operator.api import parsing, roles
from legato_operator.autoscaler.signals import Signals
from legato_operator.autoscaler.window import LONGEST_GAP
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Ref, uid_of
from legato_operator.manifests import common
from legato_operator.observing import peer_tls
from legato_operator.observing.gateway_signals import GatewaySignalSource
from legato_operator.observing.observe import Gateways, ask_gateways, find_pods, read_token
from legato_operator.observing.observed import Observed, Pod, known_tokens
from legato_operator.planning.pools import limits
from legato_protocol import names
from legato_simulator.replay.signal_round import SignalRound


class RoundReader:
    """Reads rounds of one service. In the first one, and after a gap, traffic is unknown: rates need two readings."""

    def __init__(self, cluster: Cluster, ref: Ref, gateways: Gateways, clock: Clock) -> None:
        self._cluster, self._ref, self._clock = cluster, ref, clock
        self._gateways, self._source = gateways, GatewaySignalSource()
        self._last = float("-inf")

    async def read(self, addresses: Mapping[str, str] | None = None) -> SignalRound:
        """Reads a round. `addresses` are the gateways' reachable addresses by pod; None: their own addresses.

        Raises ClusterError and ManifestError.
        """
        observed = await self._observe(addresses)
        if observed.now - self._last > LONGEST_GAP:
            self._source.forget(observed.uid)
        self._last = observed.now
        return _round(observed, await self._source.signals(observed))

    async def _observe(self, addresses: Mapping[str, str] | None) -> Observed:
        stored = await self._cluster.get(self._ref)
        service = parsing.service_from_object(stored)
        mine = {names.LABEL_SERVICE: self._ref.name}
        pools = (await self._cluster.list(names.WORKER_POOL, self._ref.namespace, mine)).items
        now = self._clock.now()
        pods = await find_pods(self._cluster, self._ref, uid_of(stored), now)
        pods = await peer_tls.attach(self._cluster, service, pods)
        pods = [_with_address(pod, addresses) for pod in pods]
        tokens = known_tokens(await read_token(self._cluster, service))
        pods = await ask_gateways(pods, self._gateways, tokens)
        return Observed(
            service=service,
            uid=uid_of(stored),
            generation=stored["metadata"]["generation"],
            status=stored.get("status", {}),
            deleting=False,
            objects=tuple(pools),
            pods=tuple(sorted(pods, key=lambda pod: (pod.created, pod.name))),
            has_token=True,
            now=now,
            timestamp=self._clock.timestamp(),
        )


def _with_address(pod: Pod, addresses: Mapping[str, str] | None) -> Pod:
    """Sets a gateway's address, and corrects a negative age: the API server's clock may be ahead."""
    pod = dataclasses.replace(pod, age=max(0.0, pod.age))
    if addresses is None or pod.pool != common.GATEWAY:
        return pod
    return dataclasses.replace(pod, address=addresses.get(pod.name, ""))


def _round(observed: Observed, signals: Signals) -> SignalRound:
    spec, metadata = observed.service.spec, observed.service.metadata
    known = observed.desired_replicas
    desired = {role: known.get(role, roles.initial_replicas(spec, role)) for role in roles.with_pool(spec)}
    decided = (observed.status.get("scaling") or {}).get("pools", {})
    return SignalRound(
        time=observed.now,
        namespace=metadata.namespace,
        service=metadata.name,
        mode=spec.scaling.mode,
        desired=desired,
        targets={role: target.replicas for role, target in limits.targets(spec, desired).items()},
        signals=_not_negative(signals),
        reasons={role: decided[role]["reason"] for role in desired if role in decided},
    )


def _not_negative(signals: Signals) -> Signals:
    """Rounds negative waits up to 0: differences of sums may be slightly negative."""
    if signals.traffic is None:
        return signals
    waited = {cause: max(0.0, seconds) for cause, seconds in signals.traffic.head_wait.items()}
    return dataclasses.replace(signals, traffic=dataclasses.replace(signals.traffic, head_wait=waited))
