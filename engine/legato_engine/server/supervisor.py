"""Keeps a core running: starts it, receives its frames, and replaces it when it dies or becomes silent."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from legato_engine.core.frames import Beat, FromCore, IterationReport, Loading, NotStarting, Profiled, Ready, Start
from legato_engine.errors import StartFailed
from legato_engine.server.core_link import CoreLink, Launch
from legato_engine.server.hub import Hub
from legato_engine.settings import WorkerSettings
from legato_protocol.wire import hang

_QUIET = 1.0  # seconds without a report of the core, after which the server sends the load to gateways
_FAREWELL = 2.0  # seconds that a core gets to end its hand-offs
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0  # seconds before a core is started again, doubled each time
_CALM = 60.0  # seconds: a core that served for this duration resets the delay
_SLICE = 0.05  # share of the silence limit: the most that a single wait counts for


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The reason to kill a core."""

    reason: str
    silent: bool = False  # without a sign of life, which may be due to other processes


class Supervisor:
    def __init__(self, settings: WorkerSettings, hub: Hub, launch: Launch, log: Callable[[str, str], None]) -> None:
        self._settings = settings
        self._hub = hub
        self._launch = launch
        self._log = log
        self._link: CoreLink | None = None
        self._ready_at: float | None = None
        self._beat = Beat()  # the last one
        self._reported_at = 0.0  # time of the core loop's last report
        self._progress = ""
        self._mismatch = ""
        self._shares = False  # in the last report
        self._stopping = False

    async def run(self, path: str, draft_path: str | None = None) -> None:
        """Runs until stopped or cancelled. The draft model is at `draft_path`.

        Raises StartFailed if another start would fail in the same way.
        """
        delay = _FIRST_DELAY
        clock = asyncio.get_running_loop().time
        while True:
            self._ready_at, self._beat = None, Beat()
            self._link = await self._launch()
            epoch = secrets.token_hex(8)
            try:
                self._link.send(Start(self._settings_now(), path, epoch, self._hub.adapters, draft_path))
                verdict = await self._listen(self._link)
                if verdict:  # reported before the process has ended, which may take long
                    self._hub.core_lost(verdict.reason, verdict.silent)
            finally:
                link, self._link = self._link, None
                ending = await link.end() if link else ""
            if self._stopping:
                return
            reason = verdict.reason if verdict else f"the core {ending}"
            if not verdict:
                self._hub.core_lost(reason)
            if self._ready_at is not None and clock() - self._ready_at >= _CALM:
                delay = _FIRST_DELAY
            self._log("ERROR", f"core of epoch {epoch} lost: {reason}; starting another in {delay:.1f} s")
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def flush(self) -> None:
        """Sends the core the frames that the hub has queued for it."""
        if self._link is not None and (inbox := self._hub.take_inbox()):
            self._link.send(inbox)

    async def wait_writable(self) -> None:
        """Waits until the core, if there is one, has read most of its frames."""
        if self._link is not None:
            await self._link.wait_writable()

    async def stop(self) -> None:
        """Lets the core end its hand-offs and exit; `run` returns."""
        self._stopping = True
        if self._link is not None:
            link, self._link = self._link, None
            await link.stop(_FAREWELL)

    async def _listen(self, link: CoreLink) -> _Verdict | None:
        """Receives frames until the core must be killed, or has ended by itself: None."""
        while True:
            silence = self._longest_silence()
            received = await _receive(link, silence, self._notify_quiet)
            if received is None:
                return _Verdict(f"the core was silent for {silence:.3g} seconds", silent=True)
            if not received:
                return None
            for frame in received:
                if isinstance(frame, Beat) and frame.busy > self._limit(frame):
                    where = f"iteration {frame.iteration}" if frame.iteration else "its start"
                    return _Verdict(f"the core was stuck in {where} for {frame.busy:.1f} seconds")
                self._take(frame)

    def _settings_now(self) -> WorkerSettings:
        """The settings with the token that hand-offs show to peers."""
        return replace(self._settings, token=self._hub.tokens[0]) if self._hub.tokens else self._settings

    def _longest_silence(self) -> float:
        """Seconds. A start may be silent as long as a step takes: loading a library holds the interpreter lock."""
        if self._ready_at is None:
            return max(self._settings.core_silence, self._settings.step_limit)
        return hang.limit(self._settings.core_silence, self._beat.expected)

    def _limit(self, beat: Beat) -> float:
        return hang.limit(self._settings.step_limit, beat.expected) if beat.iteration else self._settings.start_limit

    def _notify_quiet(self) -> None:
        """Sends gateways the load of a core that reports nothing, so that they wait for its step."""
        quiet = asyncio.get_running_loop().time() - self._reported_at
        if quiet >= _QUIET:
            self._hub.core_quiet(quiet, self._beat)

    def _take(self, frame: FromCore) -> None:
        if not isinstance(frame, Beat):
            self._reported_at = asyncio.get_running_loop().time()
        match frame:
            case IterationReport():
                self._hub.core_reported(frame)
                if frame.status is not None:
                    self._log_mismatch(frame.status.mismatch)
                    self._log_sharing(frame.status.shares_cores)
            case Loading():
                self._hub.loading(frame)
                self._log_progress(frame)
            case Ready():
                self._ready_at = asyncio.get_running_loop().time()
                self._hub.core_ready(frame)
                hello = frame.hello
                if frame.fallback:
                    self._log("WARNING", f"kernels fall back to slower operators: {frame.fallback}")
                why = f" ({frame.transport_reason})" if frame.transport_reason else ""
                if frame.transport_fallback:
                    self._log("WARNING", f"hand-offs fall back to {hello.transport}{why}")
                    why = ""
                self._log("INFO", f"ready: epoch {hello.epoch}, {frame.formats}, hand-offs by {hello.transport}{why}")
            case Profiled():
                self._hub.profile.end(frame.reason)
            case NotStarting():
                raise StartFailed(frame.reason)
            case Beat():
                self._beat = frame
                self._notify_quiet()

    def _log_mismatch(self, mismatch: str) -> None:
        if mismatch and mismatch != self._mismatch:
            self._log("ERROR", f"the owners of KV blocks disagree, which is a fault of this program: {mismatch}")
        self._mismatch = mismatch

    def _log_sharing(self, shares: bool) -> None:
        if shares and not self._shares:
            self._log("INFO", "shares its cores with other workers: steps take time slices by deadline")
        self._shares = shares

    def _log_progress(self, frame: Loading) -> None:
        """Logs a line per tenth: loads report far more often."""
        line = f"{frame.phase} {int(frame.share * 10) * 10} %" if frame.share else frame.phase
        if line != self._progress:
            self._progress = line
            self._log("INFO", line)


async def _receive(link: CoreLink, silence: float, quiet: Callable[[], None]) -> list[FromCore] | None:
    """Returns the core's next frames, or None after `silence` seconds. Calls `quiet` after each wait in between.

    A process that was stopped (a frozen container, a suspended laptop) continues with all its timers due, before it has
    read anything. So silence is counted in slices, and a stop of any duration counts as one of them.
    """
    clock = asyncio.get_running_loop().time
    receiving = asyncio.ensure_future(link.receive())  # the same for all slices: a cancelled read could lose a frame
    try:
        slice, left = silence * _SLICE, silence
        while left > 0:
            began = clock()
            await asyncio.wait((receiving,), timeout=min(slice, left))
            if receiving.done():
                return receiving.result()
            left -= min(clock() - began, slice)
            quiet()
        return None
    finally:
        receiving.cancel()
