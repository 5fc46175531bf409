"""`POST /profile`: has the core record its next steps, one request at a time, and answers with the trace."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from legato_engine.core.frames import ProfileOrder
from legato_protocol.wire.step_trace import StepTraceRequest

_TRACE = "trace.json.gz"  # torch compresses it because of its suffix

Record = Callable[[ProfileOrder], "asyncio.Future[str]"]  # raises ProfileBusy and NoCore


class ProfileBusy(Exception):
    """Another profile is being recorded. The text says until when at most."""


class NoCore(Exception):
    """No core serves. The text says why."""


class ProfileSlot:
    """The order that the core may have at a time, until its outcome is known."""

    def __init__(self) -> None:
        self._order: ProfileOrder | None = None  # not sent to the core yet
        self._outcome: asyncio.Future[str] | None = None
        self._longest = 0.0

    def begin(self, order: ProfileOrder) -> "asyncio.Future[str]":
        """Returns the outcome to come: the reason why nothing was recorded, or "". Raises ProfileBusy."""
        if self._outcome is not None:
            raise ProfileBusy(f"another profile of this worker is being recorded, for at most {self._longest:g} s")
        self._order, self._longest = order, order.timeout
        self._outcome = asyncio.get_running_loop().create_future()
        return self._outcome

    @property
    def waiting(self) -> bool:
        """True if there is an order for the core."""
        return self._order is not None

    def take(self) -> ProfileOrder | None:
        """Removes the order, which the core receives now."""
        order, self._order = self._order, None
        return order

    def end(self, reason: str) -> None:
        """The core reported an outcome, or is lost. Without an order, nothing happens."""
        outcome, self._order, self._outcome = self._outcome, None, None
        if outcome is not None and not outcome.done():
            outcome.set_result(reason)


def endpoint(record: Record) -> Callable[[Request], Awaitable[Response]]:
    """Answers with a Chrome trace, compressed by gzip, or with an error:

    400 for an invalid request, 409 during another profile, 503 while no core serves, 504 if nothing was recorded.
    """

    async def profile(request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=StepTraceRequest)
        except msgspec.MsgspecError as error:
            return _refused(400, f"not a valid request for a profile: {error}")
        with tempfile.TemporaryDirectory(prefix="legato-profile-") as folder:
            path = Path(folder) / _TRACE
            try:
                reason = await record(ProfileOrder(str(path), asked.steps, asked.timeout))
            except ProfileBusy as error:
                return _refused(409, str(error))
            except NoCore as error:
                return _refused(503, str(error))
            if reason:
                return _refused(504, reason)
            return Response(await asyncio.to_thread(path.read_bytes), media_type="application/gzip")

    return profile


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)
