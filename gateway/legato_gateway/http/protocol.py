"""The HTTP server's connection: bounds what a client can make it keep before the application sees anything.

uvicorn's parser collects the lines of a request's head without a limit, and answers what is no HTTP in plain text. An
idle connection it closes after 5 s, which is just when `openai` and httpx let go of theirs: a request that is sent at
that moment is lost. So this end waits for longer than clients and load balancers do.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from legato_gateway import errors
from legato_gateway.errors import BadRequest, GatewayError, HeadersTooLarge

MAX_HEAD_BYTES = 131_072  # the application refuses less than that with more to say; this only bounds memory
KEEP_ALIVE = 620  # seconds; the most patient load balancers keep connections for 600
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = True
    _progress = False  # this piece of data completed a head, a message or a part of a body
    _kept = 0  # bytes of pieces that did not: of a head, of trailers

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = KEEP_ALIVE

    def data_received(self, data: bytes) -> None:
        self._progress = False
        super().data_received(data)
        self._kept = 0 if self._progress else self._kept + len(data)
        if self._kept > MAX_HEAD_BYTES and not self.transport.is_closing():
            part = "head" if self._in_head else "trailer"
            self._refuse(HeadersTooLarge(f"the {part} of the request is longer than {MAX_HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer is no header: nothing may be said in it that the checks of the head would miss
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._progress = False, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(msg))

    def _refuse(self, error: GatewayError) -> None:
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self._answer(error)
        self.transport.close()

    def _answer(self, error: GatewayError) -> None:
        body = errors.body(error)
        status = f"HTTP/1.1 {error.http_status} {_REASONS[error.http_status]}\r\n"
        head = f"{status}content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
