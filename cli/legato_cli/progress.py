"""Tells on the terminal what changes: pods while they start, and the service's conditions."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from legato_operator.api import conditions
from legato_operator.cluster import Cluster, Ref, labels_of
from legato_operator.errors import ObjectNotFound
from legato_protocol import names

INTERVAL = 0.2  # seconds
TOLD = (conditions.READY, conditions.PROGRESSING, conditions.KV_TRANSPORT_READY)


class Progress:
    """Follows one service."""

    def __init__(self, cluster: Cluster, ref: Ref, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._ref = ref
        self._say = say
        self._told: dict[str, str] = {}

    async def follow(self) -> None:
        """Until cancelled, or the service is gone."""
        while True:
            try:
                status = (await self._cluster.get(self._ref)).get("status", {})
            except ObjectNotFound:
                return
            mine = {names.LABEL_SERVICE: self._ref.name}
            for pod in (await self._cluster.list("Pod", self._ref.namespace, mine)).items:
                if names.LABEL_ROLE in labels_of(pod):
                    told = _pod(pod.get("status", {}))
                    self._tell(pod["metadata"]["name"], told, told)
            for condition in status.get("conditions", ()):
                if condition["type"] in TOLD:
                    self._tell(condition["type"], condition["status"] + condition["reason"], _condition(condition))
            await asyncio.sleep(INTERVAL)

    def _tell(self, subject: str, state: str, text: str) -> None:
        """Say `text`, unless the subject's state is the one told last."""
        if self._told.get(subject) != state:
            self._told[subject] = state
            self._say(f"legato: {subject}: {text}")


def _pod(status: Mapping[str, Any]) -> str:
    ready: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    return "ready" if ready.get("status") == "True" else ready.get("message") or "starting"


def _condition(condition: Mapping[str, Any]) -> str:
    message = condition["message"]
    return f"{condition['status']} ({condition['reason']}{': ' + message if message else ''})"
