"""The HTTP server's connection: bounds the size and duration of data that the application has not seen yet.

uvicorn's parser collects the lines of a request's head without a limit and waits for them forever, resets connections
whose clients still send a body, and stops parsing after an Upgrade header. `body_rate` limits the time of bodies.
"""

import asyncio
from enum import Enum, auto
from functools import partial
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from legato_gateway.errors import BadRequest, GatewayError, HeadersTooLarge, LateRequest, Overloaded
from legato_gateway.http.connections.closing import AnswerTransport, own_answer
from legato_gateway.http.connections.limits import CONNECTIONS_FULL, LATE_HEAD, PIPELINED, UNREAD_BODY, Connections
from legato_protocol.security.tls_server import LAST_FLUSH, Secured

MAX_HEAD_BYTES: Final = 131_072  # only bounds memory: the application has a lower limit, and a better message
LARGE_BODY: Final = 65_536  # bytes; larger ones are not read ahead
MOST_PIPELINED: Final = 16  # pipelined requests; each takes 4 kB, however short it is
FRAMING: Final = (b"content-length", b"transfer-encoding")


class Parsed(Enum):
    """The part of a request that the parser is in."""

    NONE = auto()
    HEAD = auto()
    BODY = auto()


class Awaited(Enum):
    """The event that a connection waits for. Only an answer is awaited without a timer."""

    HEAD = auto()  # the rest of a head, or the first one
    ANSWER = auto()
    REST = auto()  # the rest of a body after the answer, which some clients read only once they have sent everything
    IDLE = auto()  # another request


class BoundedProtocol(Secured, HttpToolsProtocol):
    """One connection. A process has one `Connections`: serve with `factory(connections)`."""

    _part = Parsed.NONE
    _awaited = Awaited.IDLE
    _announced = 0  # bytes of the body according to the head
    _received = 0  # bytes of the body
    _kept = 0  # bytes since something was completed (see `_progress`): of a head, of trailers, or blank lines
    _progress = False  # this piece completed a head, a message or a part of a body
    _last = False  # the last answer was sent, and further data is dropped
    _timer: asyncio.TimerHandle | None = None
    _running: Any = None  # the request that is being answered, or the last answered one; `cycle` is the newest

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = connections
        limits = connections.limits
        self._patience = {Awaited.HEAD: limits.head, Awaited.REST: limits.discard_time, Awaited.IDLE: limits.idle}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._wire = transport
        self._closing = AnswerTransport(transport, self._close_after_answer, self._resume)
        super().connection_made(self._closing)
        if self.handshake is not None:
            self._places.leave(self.handshake)
        if self._places.enter(self, transport.get_extra_info("sockname")[1]):
            self._update()
        else:
            text = "this gateway has reached its maximum number of connections"
            self._refuse(Overloaded(text, reason=CONNECTIONS_FULL))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._places.leave(self)
        if self._running is not None:  # uvicorn notifies only the newest request
            self._running.disconnected = True
            self._running.message_event.set()
        self._closing.release()
        super().connection_lost(exc)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self._last or self._wire.is_closing():
            return
        self._progress = False
        left = memoryview(data)
        try:
            while left and not self._wire.is_closing():
                left = self._parse(left)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        self._kept = 0 if self._progress else self._kept + len(data)
        if self._kept > MAX_HEAD_BYTES:
            part = "trailer" if self._part is Parsed.BODY else "head"
            self._refuse(HeadersTooLarge(f"the {part} of the request is longer than {MAX_HEAD_BYTES} bytes"))
        self._update()

    def _parse(self, data: memoryview) -> memoryview:
        """Parses `data` up to the end of a head with an Upgrade header, if it has one, and returns the rest.

        The upgrade is declined, as RFC 9110, 7.8 allows; Java's client asks for one first. The parser stops there, so a
        new one is given the headers that frame the body, and then reads the rest.
        """
        try:
            self.parser.feed_data(data)
            return data[len(data) :]
        except httptools.HttpParserUpgrade as stop:
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # like uvicorn's own parser
            framing = [b"%s: %s\r\n" % line for line in self.headers if line[0] in FRAMING]
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))
            return data[stop.args[0] :]

    def on_message_begin(self) -> None:
        if self._part is not Parsed.BODY:  # else these are the framing headers again
            self._part = Parsed.HEAD
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._part is Parsed.HEAD:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is Parsed.HEAD:  # trailers are dropped: the head was checked without them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._part is Parsed.BODY:
            return
        if len(self.pipeline) == MOST_PIPELINED:
            self._places.refused(PIPELINED, f"more than {MOST_PIPELINED} requests were pipelined")
            raise BadRequest("too many requests")  # stops the parser
        running = self._running if self._waits_for_answer else None
        super().on_headers_complete()
        self._running = running or self.cycle
        self._part, self._progress, self._received = Parsed.BODY, True, 0
        self._announced = int(next((value for name, value in self.headers if name == b"content-length"), b"0"))
        self._hold_back()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._received += len(body)
        super().on_body(body)
        self._hold_back()

    def _hold_back(self) -> None:
        """Pauses reading a large body until the application asks for more of it, so that TCP slows its client down."""
        if max(self._announced, self._received) > LARGE_BODY and self._waits_for_answer:
            self.flow.pause_reading()

    def _resume(self) -> None:
        """Resumes reading, unless a piece still waits for the application: memory for more would not be counted."""
        if self._waits_for_answer and self.cycle.body:
            self.flow.pause_reading()
        else:
            self._wire.resume_reading()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else the body is still to come
            self._part, self._progress = Parsed.NONE, True
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._running = self.pipeline[-1][0] if self.pipeline else self._running
        super().on_response_complete()
        self._update()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(msg))

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _waits_for_answer(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _update(self) -> None:
        """Starts the wait that follows from the data read and the answers sent."""
        awaited = self._next()
        if awaited is self._awaited:
            return
        self._awaited = awaited
        self._places.waits(self, awaited is not Awaited.ANSWER)
        if self._timer is not None:
            self._timer.cancel()
        seconds = self._patience.get(awaited)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _next(self) -> Awaited:
        if self._waits_for_answer:
            return Awaited.ANSWER
        if self._part is Parsed.BODY:
            return Awaited.REST
        return Awaited.HEAD if self.cycle is None or self._part is Parsed.HEAD or self._kept else Awaited.IDLE

    def _expire(self) -> None:
        seconds = f"{self._patience[self._awaited]:g} s"
        if self._awaited is Awaited.REST:
            self._places.refused(UNREAD_BODY, f"a body went on for {seconds} after the answer to its request")
        elif self._awaited is Awaited.HEAD:
            text = f"the head of a request did not arrive within {seconds}"
            self._places.refused(LATE_HEAD, text)
            if self._part is Parsed.HEAD:  # else the client would take this for the answer to its next request
                self._refuse(LateRequest(text))
                return
        self._end()

    def timeout_keep_alive_handler(self) -> None:
        """Does nothing: uvicorn does not count idle time after the rest of a body."""

    # ── ending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def make_room(self) -> None:
        """Closes this idle connection in favour of a new one."""
        if self._wire.get_extra_info("ssl_object") is not None:
            self._wire.abort()  # a TLS closing handshake takes as long as the client likes
        else:
            self._end()

    def _close_after_answer(self) -> None:
        """Closes after the last answer, but reads on while the client still sends a body, since a reset could discard
        the answer. nginx does the same with `lingering_close`."""
        self._last = self._part is Parsed.BODY and not self._waits_for_answer
        if not self._last:
            self._wire.close()
        elif self._wire.can_write_eof():
            self._wire.write_eof()

    def _refuse(self, error: GatewayError) -> None:
        """Sends an error, unless the client expects another answer first or has one, and closes the connection."""
        answered = self._part is Parsed.BODY and not self._waits_for_answer
        if not answered and not self.pipeline and not (self._waits_for_answer and self.cycle.response_started):
            self._wire.write(own_answer(error))
        self._end()

    def _end(self) -> None:
        """Closes the connection, without waiting for a client that reads nothing."""
        self._wire.close()
        if self._wire.get_write_buffer_size():
            self.loop.call_later(LAST_FLUSH, self._wire.abort)


def factory(connections: Connections) -> type[asyncio.Protocol]:
    """Returns uvicorn's protocol factory."""
    return cast("type[asyncio.Protocol]", partial(BoundedProtocol, connections))
