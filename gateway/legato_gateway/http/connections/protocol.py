"""The HTTP server's connection: bounds the size and duration of data that the application has not seen yet.

uvicorn's parser collects the lines of a request's head without a limit, waits for them forever, and answers invalid
HTTP in plain text. `connections` has the limits.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from legato_gateway.errors import BadRequest, GatewayError, HeadersTooLarge, LateRequest, Overloaded
from legato_gateway.http import cors
from legato_gateway.http.connections import half_closed
from legato_gateway.http.connections.body_flow import BodyFlow, announced
from legato_gateway.http.connections.closing import AnswerTransport, own_answer
from legato_gateway.http.connections.limits import CONNECTIONS_FULL, LATE_HEAD, SLOW_BODY, UNREAD_BODY, Connections
from legato_protocol.security.tls_server import EARLY, LAST_FLUSH, Secured

MAX_HEAD_BYTES = 131_072  # only bounds memory: the application refuses smaller ones with a better message
MOST_OFFERS = 8  # of another protocol in one piece of data: each costs a parser
FRAMING = (b"content-length", b"transfer-encoding")


class BoundedProtocol(Secured, HttpToolsProtocol):
    """One connection. A process has one `Connections`: serve with `factory(connections)`."""

    _in_head = False
    _in_body = False
    _progress = False  # this piece of data completed a head, a message or a part of a body
    _offered = False  # the request offers another protocol, at which the parser stopped
    _resuming = False  # a new parser reads the framing headers of a request whose offer was declined
    _kept = 0  # bytes of pieces that completed nothing: of a head, or of trailers
    _received = 0  # bytes of a body, in this window
    _closes_early = False  # an answer before the end of this body closes the connection, a later one does not
    _rest: int | None = None  # bytes still accepted and dropped of a body whose request was answered
    _last = False  # the last answer was sent
    _flow: BodyFlow  # the value of `flow`
    _probing: asyncio.Task[None]  # of a client that will send nothing more
    _watch: asyncio.TimerHandle | None = None  # ends the wait for a head or a body

    def __init__(self, connections: Connections, *args: Any, origins: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = connections
        self._origins = origins
        self._limits = connections.limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = BodyFlow(transport, self.loop.time)
        if self.handshake is not None:
            self._places.leave(self.handshake)
        if self._places.enter(self, self.server[1] if self.server else None):
            self._watch_head()
        else:
            text = "this gateway has its maximum number of connections"
            self._refuse(Overloaded(text, reason=CONNECTIONS_FULL))

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._unset_keepalive_if_required()
        self._places.leave(self)
        if self.cycle is not None:
            self.cycle.transport = self.transport  # so that nothing refers to itself
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Closes this connection after its current answer, or immediately if it has none."""
        self._closes_early = False
        super().shutdown()

    def make_room(self) -> None:
        """Closes a connection that waits for a request."""
        if self.scheme == "https":
            self.transport.abort()  # a TLS closing handshake takes as long as the client likes
        else:
            self._end()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._last:
            self._parse(data)
        if self._rest is not None and not self.transport.is_closing():
            self._rest -= len(data)
            if self._rest < 0:
                self._end_discarding()

    def _parse(self, data: bytes) -> None:
        self._progress = False
        self._unset_keepalive_if_required()
        self._feed(data)
        self._kept = 0 if self._progress else self._kept + len(data)
        if self._watch is None and not self._in_body and not self._progress:
            self._watch_head()  # also after blank lines, which the parser does not report
        if self._kept > MAX_HEAD_BYTES and not self.transport.is_closing():
            part = "trailer" if self._in_body else "head"
            self._refuse(HeadersTooLarge(f"the {part} of the request is longer than {MAX_HEAD_BYTES} bytes"))

    def _feed(self, data: bytes) -> None:
        """Parses, and declines offers of another protocol, as RFC 9110, 7.8 allows: Java's client begins with one."""
        left, offers = memoryview(data), 0
        while left and not self.transport.is_closing():
            try:
                self.parser.feed_data(left)
                return
            except httptools.HttpParserUpgrade as stop:
                left, offers = left[stop.args[0] :], offers + 1
                if offers > MOST_OFFERS:
                    self.send_400_response("Too many offers of another protocol.")
                    return
                self._resume()
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def _resume(self) -> None:
        """Continues with a new parser, as the old one cannot. It first reads the headers that frame this request."""
        self.parser, self._resuming, self._offered = httptools.HttpRequestParser(self), True, False
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # like uvicorn's own parser
        framing = [b"%s: %s\r\n" % line for line in self.headers if line[0] in FRAMING]
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns True to stay open: while a complete request is in progress and the client may still be there."""
        cycle = self.cycle
        idle = cycle is None or cycle.response_complete or self._in_head or self._in_body
        if idle or self.pipeline or not half_closed.can_be_asked(cycle):
            return False
        cycle.keep_alive = False
        self._probing = self.loop.create_task(half_closed.probe(self.transport, cycle))
        return True

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self._in_head = True
        if self._watch is None:
            self._watch_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are dropped, as the checks of the head would miss them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._resuming:
            self._resuming = False
            return
        self._offered = self.parser.should_upgrade()
        self._in_head, self._in_body, self._progress = False, True, True
        self._places.waits(self, False)
        self._begin_window()
        super().on_headers_complete()
        self._flow.begin(self.cycle)
        self.cycle.transport = AnswerTransport(self.transport, self._close_after_answer)
        self._closes_early = self.cycle.keep_alive and announced(self.cycle) > self._limits.discard
        if self._closes_early:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._received += len(body)
        super().on_body(body)
        self._flow.received(len(body))

    def on_message_complete(self) -> None:
        if self._offered:
            return  # the body is still to come
        self._in_body, self._progress, self._rest = False, True, None
        self._unwatch()
        if self._closes_early and not self.cycle.response_started:
            self.cycle.keep_alive = True
        super().on_message_complete()
        if self.cycle.response_complete:  # it was refused before the end of its body
            self._idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete:
            self._begin_discarding()
        elif self.timeout_keep_alive_task is not None:
            self._idle()

    def _idle(self) -> None:
        self._places.waits(self, True)
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self._limits.idle, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self._end()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(msg))

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch_head(self) -> None:
        self._watch_for(self._limits.head, self._check_head)

    def _watch_for(self, seconds: float, check: Callable[[], None]) -> None:
        self._unwatch()
        self._watch = self.loop.call_later(seconds, check)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _check_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._watch_head()  # a pipelined request waits for the answer, or it was just a blank line
            return
        text = f"the head of a request did not arrive within {self._limits.head:g} s"
        self._places.refused(LATE_HEAD, text)
        if self._in_head:
            self._refuse(LateRequest(text))
        else:  # it sent nothing: an answer would be mistaken for its next request's
            self._end()

    def _begin_window(self) -> None:
        self._received = 0
        self._flow.forget_time()
        self._watch_for(self._limits.body_window, self._check_body)

    def _check_body(self) -> None:
        due = self._limits.body_rate * self._limits.body_window
        if self._received >= due:
            self._begin_window()
            return
        if (
            left := self._limits.body_window - self._flow.seconds_reading()
        ) > EARLY:  # reading was paused for a part of the window
            self._watch_for(self._limits.body_window if self._flow.read_paused else left, self._check_body)
            return
        text = f"{self._received} bytes of a body arrived in {self._limits.body_window:g} s; at least {due:g} have to"
        self._places.refused(SLOW_BODY, text)
        self._refuse(LateRequest(text))

    # ── bodies that continue after the answer ───────────────────────────────────────────────────────────────────────

    def _close_after_answer(self) -> None:
        """Handles a response that closes the connection, after its last byte or because it cannot be completed."""
        self._last = self._in_body and self.cycle.response_complete
        if not self._last:
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()

    def _begin_discarding(self) -> None:
        if self.transport.is_closing():
            return
        self._rest = self._limits.discard
        self._unset_keepalive_if_required()
        self._places.waits(self, True)
        self._watch_for(self._limits.discard_time, self._end_discarding)

    def _end_discarding(self) -> None:
        text = f"a body was answered before its end, and went on for {self._limits.discard} bytes or "
        self._places.refused(UNREAD_BODY, f"{text}{self._limits.discard_time:g} s")
        self.make_room()

    # ── ending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _refuse(self, error: GatewayError) -> None:
        answered = self._rest is not None  # the request that this belongs to
        if not answered and (self.cycle is None or not self.cycle.response_started or self.cycle.response_complete):
            self.transport.write(own_answer(error, self._cors_headers()))
        self._end()

    def _end(self) -> None:
        """Closes the connection, without waiting for a client that reads nothing."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LAST_FLUSH, self.transport.abort)

    def _cors_headers(self) -> dict[str, str]:
        """Returns the headers without which a page cannot read an answer. They need the origin, if it was read."""
        if not (self._in_head or self._in_body) or not self._places.is_public(self.server[1] if self.server else None):
            return {}
        origin = next((value.decode("latin-1") for name, value in self.headers if name == b"origin"), None)
        return cors.headers(self._origins, origin)


def factory(connections: Connections, origins: Sequence[str] = ()) -> type[asyncio.Protocol]:
    """Returns uvicorn's protocol factory. Pages of these origins may read the connection's own answers."""
    return cast("type[asyncio.Protocol]", partial(BoundedProtocol, connections, origins=origins))
