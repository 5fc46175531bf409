"""Workers' control ports over HTTP: their state, and the requests to drain and to serve again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from legato_operator.observing.control_port import ControlPort
from legato_operator.observing.observed import AdapterState, KVFormat, PeerTLS, WorkerState
from legato_protocol.process.followed_files import InvalidFile

TIMEOUT = 2.0  # seconds for a whole answer; a slow worker must not delay a pass for longer
MAX_CONCURRENT = 64  # requests; others wait outside the timeout and the client


class HttpWorkers:
    """`observe.Workers` over HTTP. A worker that does not answer, or answers invalid data, has no state."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float = TIMEOUT) -> None:
        self._control = ControlPort(session, timeout)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def state(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> WorkerState | None:
        try:
            async with self._slots, self._control.request("GET", address, "/state", tokens, tls) as answer:
                return _read(await answer.json(content_type=None)) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, KeyError, TypeError, ValueError, InvalidFile):
            return None

    async def drain(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> None:
        try:
            async with self._control.request("POST", address, "/drain", tokens, tls):
                return
        except (aiohttp.ClientError, TimeoutError, InvalidFile):
            return  # the next plan repeats it

    async def recall(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> bool:
        try:
            async with self._control.request("DELETE", address, "/drain", tokens, tls) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, InvalidFile):
            return False


def _read(state: dict[str, Any]) -> WorkerState:
    """Returns a worker's state. A worker whose core is down runs nothing and reports no transport; an unfinished
    hand-off counts as busy."""
    draining = bool(state["draining"])
    sequences = int(state.get("running", 0)) + int(state.get("waiting", 0))
    busy = max(sequences, 0 if state.get("idle", True) else 1)
    stopping = bool(state.get("stopping", True))  # an older worker cannot be recalled
    tokens = tuple(str(each) for each in state.get("tokens", ()))
    adapters = _adapters(state["adapters"]) if "adapters" in state else None
    return WorkerState(
        busy,
        draining,
        str(state.get("transport", "")),
        stopping,
        tokens,
        adapters,
        str(state.get("transport_reason", "")),
        bool(state.get("transport_fallback", False)),
        int(state.get("totals", {}).get("transfer", {}).get("failed_in_a_row", 0)),
        str(state.get("fallback", "")),
        _tier_problem(state.get("totals", {}).get("tiers", {})),
        int(state.get("max_length", 0)),
        int(state.get("max_running", 0)),
        _kv(state) if "kv_revision" in state else None,
        core_runs="transport" in state,
    )


def _kv(state: dict[str, Any]) -> KVFormat:
    revision, weights, layout = (str(state[name]) for name in ("kv_revision", "weights", "layout"))
    return KVFormat(revision, weights, layout, str(state["formats"]).partition(":")[0])


def _tier_problem(tiers: dict[str, Any]) -> str:
    """Returns the recent problems of KV tiers, with the number of errors since the core's start."""
    recent = ((name, counts.get("problem"), counts.get("errors", 0)) for name, counts in tiers.items())
    return "; ".join(f"{name}: {problem} (errors: {errors})" for name, problem, errors in recent if problem)


def _adapters(state: dict[str, Any]) -> AdapterState:
    problems = {str(name): str(problem) for name, problem in dict(state["problems"]).items()}
    return AdapterState(str(state["list"]), frozenset(map(str, state["offered"])), problems)
