"""Orders of commands to a service, on either kind of cluster."""

import datetime
from collections.abc import Mapping
from typing import Any

from legato_cli.services import events, view
from legato_operator.api import parsing, roles
from legato_operator.api.resources import InferenceService, Spec
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, Ref
from legato_operator.errors import ClusterError, ManifestError, ObjectNotFound
from legato_operator.manifests import common, pool
from legato_protocol import names
from legato_protocol.settings import durations

PAUSE = 1800.0  # seconds for which `legato scale` pauses the autoscaler by default


class OrderRefused(Exception):
    """The order does not apply to this service. The text has the reason."""


class Operations:
    """Answers orders for one service."""

    def __init__(self, cluster: Cluster, ref: Ref, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._ref = ref

    async def answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Executes an order; a refusal is the answer's `error`."""
        try:
            return await self._answer(order)
        except ObjectNotFound:
            return {"error": f"there is no InferenceService {self._ref.name} in namespace {self._ref.namespace}"}
        except (OrderRefused, ClusterError, ManifestError) as refusal:
            return {"error": str(refusal)}

    async def _answer(self, order: Mapping[str, Any]) -> dict[str, Any]:
        match order:
            case {"do": "scale", "pool": str(name), "replicas": int(replicas), **rest}:
                return {"message": await self._scale(name, replicas, rest.get("for"))}
            case {"do": common.ROTATE_TOKEN}:
                return {"message": await self._rotate_token()}
            case {"do": "status"}:
                _, shown = await self._read()
                return {"status": shown}
            case {"do": "describe"}:
                stored, shown = await self._read()
                return {"describe": {**shown, "events": await self._events(stored)}}
        raise OrderRefused("unknown command (is the running `legato up` of the same version?)")

    async def _read(self) -> tuple[Object, dict[str, Any]]:
        return await view.read(self._cluster, self._ref, self._clock.now())

    async def _events(self, stored: Object) -> list[dict[str, Any]]:
        return await events.read(self._cluster, stored)

    async def _rotate_token(self) -> str:
        """Annotates the service with the time. Any new value requests a rotation."""
        service = parsing.service_from_object(await self._cluster.get(self._ref))
        now = datetime.datetime.fromtimestamp(self._clock.now(), datetime.UTC).isoformat()
        asked = _annotated(service, common.ANNOTATION_ROTATE_TOKEN, now)
        await self._cluster.apply(asked, common.ROTATOR, force=True)
        return f"{self._ref.name}: another token was asked for; see the Events TokenRotating and TokenRotated"

    async def _scale(self, name: str, replicas: int, seconds: float | None) -> str:
        """Sets a pool's size. In mode Managed it pauses the autoscaler, which would revert the size."""
        service = parsing.service_from_object(await self._cluster.get(self._ref))
        _check(service.spec, name, replicas, seconds)
        message = f"{common.pool_name(service, name)}: {replicas} workers desired"
        if service.spec.scaling.mode == "Managed":
            pause = PAUSE if seconds is None else seconds
            until = datetime.datetime.fromtimestamp(self._clock.now() + pause, datetime.UTC)
            paused = _annotated(service, common.ANNOTATION_PAUSED, until.isoformat(timespec="seconds"))
            await self._cluster.apply(paused, common.SCALER, force=True)
            message += f"; the autoscaler is paused for {durations.text(pause)}"
        if name == roles.DECODE and not replicas:
            message += "; requests are held until there is a decode worker again"
        await self._cluster.apply(pool.scale(service, name, replicas), common.SCALER, force=True)
        return message


def _annotated(service: InferenceService, annotation: str, value: str) -> dict[str, Any]:
    """Returns a patch of the service with one annotation."""
    name = service.metadata.name
    return common.partial_object(service, names.INFERENCE_SERVICE, name, annotations={annotation: value})


def _check(spec: Spec, name: str, replicas: int, seconds: float | None) -> None:
    if seconds is not None and spec.scaling.mode != "Managed":
        raise OrderRefused(f"--for pauses the autoscaler, which spec.scaling.mode {spec.scaling.mode} does not use")
    if name not in roles.with_pool(spec):
        raise OrderRefused(f"the service has no {name} pool: scaling.{name}.max or {name}.replicas is 0")
    if spec.scaling.mode == "Fixed":
        raise OrderRefused(f"spec.scaling.mode is Fixed (change spec.{name}.replicas in the manifest instead)")
    bounds = roles.bounds(spec, name)
    if not bounds.min <= replicas <= bounds.max:
        raise OrderRefused(
            f"not a valid number of {name} workers: {replicas} (spec.scaling.{name}: {bounds.min} to {bounds.max})"
        )
