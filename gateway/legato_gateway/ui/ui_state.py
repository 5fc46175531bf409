"""The data of the page at `/ui`, as plain JSON values, without prompts and answers."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from legato_gateway.relay.relay import RequestRelay
from legato_gateway.ui.load_samples import LoadSampler

REQUESTS = 64  # on the page, the most recent ones


class UIState:
    """Reports the state of the gateway `gateway`. `state` returns the data of `/state`, `wall` Unix seconds."""

    def __init__(
        self,
        gateway: str,
        state: Callable[[], dict[str, Any]],
        relay: RequestRelay,
        samples: LoadSampler,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._gateway = gateway
        self._state = state
        self._relay = relay
        self._samples = samples
        self._wall = wall

    def report(self, since: float) -> dict[str, Any]:
        """Returns the state with the samples after `since`, in Unix seconds. Only `legato ui` fills in `service`."""
        state = self._state()
        gateway = {
            "gateway": self._gateway,
            "time": self._wall(),
            "model": {"name": state["model"]["name"], "context": state["model"]["max_length"]},
            "active": self._relay.active,
            "queue": state["queue"],
            "problem": state["discovery"]["problem"],
            "workers": state["workers"],
            "requests": state["requests"][-REQUESTS:],
            "samples": [asdict(sample) for sample in self._samples.since(since)],
        }
        return {"gateways": [gateway], "service": None}
