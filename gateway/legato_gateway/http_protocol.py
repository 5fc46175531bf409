"""The HTTP server's connection: bounds what a client can make it keep before the application sees anything.

uvicorn's parser collects the lines of a request's head without a limit, and answers what is no HTTP in plain text.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from legato_gateway import errors
from legato_gateway.errors import BadRequest, GatewayError, HeadersTooLarge

MAX_HEAD_BYTES = 131_072  # the application refuses less than that with more to say; this only bounds memory
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _in_head = True
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HeadersTooLarge(f"the head of the request is longer than {MAX_HEAD_BYTES} bytes"))

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest(msg))

    def _refuse(self, error: GatewayError) -> None:
        body = errors.body(error)
        status = f"HTTP/1.1 {error.http_status} {_REASONS[error.http_status]}\r\n"
        head = f"{status}content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
