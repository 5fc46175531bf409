"""Prints progress: ready pods while a service starts, later every change of pods and conditions."""

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any

from legato_cli.local.terminal import Terminal
from legato_operator.api import conditions
from legato_operator.cluster import Cluster, Ref, labels_of
from legato_operator.errors import ObjectNotFound
from legato_protocol import names

INTERVAL = 0.2  # seconds
REMINDER = 30.0  # seconds without news after which a start prints the reasons for waiting
PRINTED = (conditions.READY, conditions.PROGRESSING, conditions.KV_TRANSPORT_READY)
_SHARE = re.compile(r" *[0-9]+ ?%")
READY = "ready"


class Progress:
    """Prints the progress of one service."""

    def __init__(self, cluster: Cluster, ref: Ref, terminal: Terminal) -> None:
        self._cluster = cluster
        self._ref = ref
        self._terminal = terminal
        self._printed: dict[str, str] = {}  # last state by subject
        self._started = False
        self._quiet_since = asyncio.get_running_loop().time()

    async def started(self) -> None:
        """Ends the start: from now on every change is printed."""
        await self._poll()
        self._started = True

    async def follow(self) -> None:
        """Polls until it is cancelled, or the service is gone."""
        with contextlib.suppress(ObjectNotFound):
            while True:
                await self._poll()
                await asyncio.sleep(INTERVAL)

    async def _poll(self) -> None:
        status = (await self._cluster.get(self._ref)).get("status", {})
        print_progress = self._print_changes if self._started else self._print_start
        print_progress(await self._pods(), status)

    async def _pods(self) -> dict[str, str]:
        """Returns the state of each pod: `ready`, or its message."""
        mine = {names.LABEL_SERVICE: self._ref.name}
        listed = (await self._cluster.list("Pod", self._ref.namespace, mine)).items
        return {
            pod["metadata"]["name"]: _state(pod.get("status", {}))
            for pod in listed
            if names.LABEL_ROLE in labels_of(pod)
        }

    def _print_start(self, pods: Mapping[str, str], status: Mapping[str, Any]) -> None:
        for name, state in pods.items():
            if state == READY or "exited" in state or "killed" in state:
                self._print(name, state, state)
            else:
                self._printed[name] = _SHARE.sub("", state)
        for condition in _conditions(status):
            if condition["reason"] != conditions.SCALED_TO_ZERO:  # if the start ends so, this is printed after it
                self._printed[condition["type"]] = _identity(condition)
        pending = {name: state.partition(" (")[0] for name, state in sorted(pods.items()) if state != READY}
        waiting = ", ".join(f"{name}: {state}" for name, state in pending.items())
        self._terminal.update(waiting)
        now = asyncio.get_running_loop().time()
        if waiting and now - self._quiet_since >= REMINDER:
            self._say(f"waiting for {waiting}")

    def _print_changes(self, pods: Mapping[str, str], status: Mapping[str, Any]) -> None:
        for name, state in pods.items():
            self._print(name, _SHARE.sub("", state), state)
        for condition in _conditions(status):
            self._print(condition["type"], _identity(condition), _text(condition))
        for gone in self._printed.keys() - pods.keys() - set(PRINTED):
            del self._printed[gone]

    def _print(self, subject: str, state: str, text: str) -> None:
        """Prints `text` if the subject's state has changed."""
        if self._printed.get(subject) != state:
            self._printed[subject] = state
            self._say(f"{subject}: {text}")

    def _say(self, text: str) -> None:
        self._quiet_since = asyncio.get_running_loop().time()
        self._terminal.say(f"legato: {text}")


def _state(status: Mapping[str, Any]) -> str:
    ready: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    return READY if ready.get("status") == "True" else ready.get("message") or "starting"


def _conditions(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [condition for condition in status.get("conditions", ()) if condition["type"] in PRINTED]


def _identity(condition: Mapping[str, Any]) -> str:
    return f"{condition['status']} {condition['reason']}"


def _text(condition: Mapping[str, Any]) -> str:
    message = condition["message"]
    return f"{condition['status']} ({condition['reason']}{': ' + message if message else ''})"
