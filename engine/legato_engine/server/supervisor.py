"""Keeps a core running: starts it, listens to it, replaces it when it dies or falls silent."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from legato_engine.core.frames import Beat, FromCore, Loading, NotStarting, Ready, Start, Turn
from legato_engine.errors import StartFailed
from legato_engine.server.core_link import CoreLink, Launch
from legato_engine.server.hub import Hub
from legato_engine.settings import WorkerSettings
from legato_protocol import hang

_QUIET = 1.0  # seconds without news of the core, after which gateways hear from the server instead
_FAREWELL = 2.0  # seconds a core gets to end its hand-offs
_SLICE = 0.05  # of the silence allowed; of a wait that oversleeps no more than this counts


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a core is started again; a core that served for `calm` seconds starts it over."""

    first: float = 0.2
    most: float = 10.0
    calm: float = 60.0


class Supervisor:
    def __init__(
        self,
        settings: WorkerSettings,
        hub: Hub,
        launch: Launch,
        log: Callable[[str, str], None],
        backoff: Backoff | None = None,
    ) -> None:
        self._settings = settings
        self._hub = hub
        self._launch = launch
        self._log = log
        self._backoff = backoff or Backoff()
        self._link: CoreLink | None = None
        self._ready_at: float | None = None
        self._beat = Beat()  # the last one
        self._news_at = 0.0  # when the core's loop said something last
        self._told = ""
        self._mismatch = ""
        self._stopping = False

    async def run(self, path: str) -> None:
        """Until stopped or cancelled. Raises StartFailed when another try would fail the same way."""
        delay = self._backoff.first
        clock = asyncio.get_running_loop().time
        while True:
            self._ready_at, self._beat = None, Beat()
            self._link = await self._launch()
            epoch = secrets.token_hex(8)
            try:
                self._link.send(Start(self._settings_now(), path, epoch, self._hub.adapters))
                reason = await self._listen(self._link)
                if reason:  # gateways need not wait for its end
                    self._hub.core_lost(reason)
            finally:
                link, self._link = self._link, None
                ending = await link.end() if link else ""
            if self._stopping:
                return
            if not reason:
                reason = f"the core {ending}"
                self._hub.core_lost(reason)
            if self._ready_at is not None and clock() - self._ready_at >= self._backoff.calm:
                delay = self._backoff.first
            self._log("ERROR", f"core of epoch {epoch} lost: {reason}; starting another in {delay:.1f} s")
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._backoff.most)

    def flush(self) -> None:
        """Send the core what the hub holds for it."""
        if self._link is not None and (inbox := self._hub.take_inbox()):
            self._link.send(inbox)

    async def wait_writable(self) -> None:
        """Until the core, if there is one, has read most of what it was sent."""
        if self._link is not None:
            await self._link.wait_writable()

    async def stop(self) -> None:
        """End the core in peace; `run` returns."""
        self._stopping = True
        if self._link is not None:
            link, self._link = self._link, None
            await link.stop(_FAREWELL)

    async def _listen(self, link: CoreLink) -> str | None:
        """Until the core ends; why, if it was not by itself."""
        while True:
            silence = hang.limit(self._settings.core_silence, self._beat.expected)
            received = await _receive(link, silence, self._tell_quiet)
            if received is None:
                return f"the core was silent for {silence:.3g} seconds"
            if not received:
                return None
            for frame in received:
                if isinstance(frame, Beat) and frame.busy > self._limit(frame):
                    where = f"turn {frame.turn}" if frame.turn else "its start"
                    return f"the core was stuck in {where} for {frame.busy:.1f} seconds"
                self._take(frame)

    def _settings_now(self) -> WorkerSettings:
        """With the token that hand-offs are to show."""
        return replace(self._settings, token=self._hub.tokens[0]) if self._hub.tokens else self._settings

    def _limit(self, beat: Beat) -> float:
        return hang.limit(self._settings.step_limit, beat.expected) if beat.turn else self._settings.start_limit

    def _tell_quiet(self) -> None:
        """Gateways hear of a core that says nothing from here, so that they wait for what it computes."""
        quiet = asyncio.get_running_loop().time() - self._news_at
        if quiet >= _QUIET:
            self._hub.core_quiet(quiet, self._beat)

    def _take(self, frame: FromCore) -> None:
        if not isinstance(frame, Beat):
            self._news_at = asyncio.get_running_loop().time()
        match frame:
            case Turn():
                self._hub.core_said(frame)
                if frame.status is not None:
                    self._say_mismatch(frame.status.mismatch)
            case Loading():
                self._hub.loading(frame)
                self._say_progress(frame)
            case Ready():
                self._ready_at = asyncio.get_running_loop().time()
                self._hub.core_ready(frame)
                hello = frame.hello
                if frame.fallback:
                    self._log("WARNING", f"{frame.fallback}; torch's own operators compute instead, which are slower")
                why = f" ({frame.transport_reason})" if frame.transport_reason else ""
                if frame.transport_fallback:
                    self._log("WARNING", f"hand-offs fall back to {hello.transport}{why}")
                    why = ""
                self._log("INFO", f"ready: epoch {hello.epoch}, {frame.formats}, hand-offs by {hello.transport}{why}")
            case NotStarting():
                raise StartFailed(frame.reason)
            case Beat():
                self._beat = frame
                self._tell_quiet()

    def _say_mismatch(self, mismatch: str) -> None:
        if mismatch and mismatch != self._mismatch:
            self._log("ERROR", f"the owners of KV blocks disagree, which is a fault of this program: {mismatch}")
        self._mismatch = mismatch

    def _say_progress(self, frame: Loading) -> None:
        """A line per tenth: loads report more often than anyone reads."""
        line = f"{frame.phase} {int(frame.share * 10) * 10} %" if frame.share else frame.phase
        if line != self._told:
            self._told = line
            self._log("INFO", line)


async def _receive(link: CoreLink, silence: float, quiet: Callable[[], None]) -> list[FromCore] | None:
    """What the core says, or None after `silence` seconds during which this process could have heard it. `quiet` is
    called now and then meanwhile.

    A process that was stopped (a frozen container, a suspended laptop) wakes up with all its timers due, before it has
    read anything. So silence is counted in slices, and a stop counts as one of them, however long it was.
    """
    clock = asyncio.get_running_loop().time
    receiving = asyncio.ensure_future(link.receive())  # one for all slices: a cancelled read could lose a frame
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
