"""Calls of libucp that UCXX does not offer to Python, or offers differently:

- one-sided puts and their keys;
- a listener at one address: UCXX's listens on all;
- endpoints: their close must not depend on whether they failed;
- active messages: UCXX identifies its receives by an address that a later endpoint may reuse, and loses some.

Handles (context, worker, listener, endpoint, key, request) are plain integers here.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from typing import Any

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.ucx.structures import (
    PROTOTYPES,
    EndpointParams,
    HandlerParams,
    ListenerAttributes,
    ListenerParams,
    MapParams,
    OnConnectionRequest,
    OnFailure,
    OnMessage,
    RequestAttributes,
    RequestParams,
    SocketAddress,
)

IN_PROGRESS = 1
_MAP_ADDRESS_LENGTH_TYPE = 0b10011
_REQUEST_FLAGS = 1 << 4
_REQUEST_MEMORY_TYPE = 1 << 6
_HOST, _CUDA = 0, 1  # types of memory
_CLOSE_FORCE = 1 << 0
_MESSAGE_ID = 23  # of our active messages; UCXX has another
_SEND_REPLY_EAGER = 0b11
_HANDLE_ID_FLAGS_CALLBACK = 0b111
_WHOLE_MESSAGES = 1
_LISTEN_AT_AND_ASK = 0b101
_ADDRESS_LISTENED_AT = 0b1
_CLIENT_ADDRESS = 0b1
_CLIENT = 0b110110  # error mode and handler, address, flags
_SERVER = 0b1000110  # error mode and handler, connection request
_REPORT_FAILURES = 1
_CLIENT_SERVER = 1 << 0
_LAST_ERROR = (1 << 64) - 256  # pointers above are negative statuses


class Ucp:
    """libucp, as loaded for UCXX."""

    def __init__(self, on_device: bool = False) -> None:
        """Maps and puts host memory, or GPU memory with `on_device`.

        UCX gets the memory type explicitly: it does not have to detect it, and a mismatch is an error.
        """
        import libucx

        loaded = [library for library in libucx.load_library() or [] if library is not None]
        matches = [library for library in loaded if "libucp" in library._name]
        self._lib = matches[0] if matches else ctypes.CDLL("libucp.so.0")
        for name, (result, *arguments) in PROTOTYPES.items():
            function = getattr(self._lib, name)
            function.restype, function.argtypes = result, arguments
        self._memory_type = _CUDA if on_device else _HOST
        self._plain = RequestParams()
        self._put = RequestParams(mask=_REQUEST_MEMORY_TYPE, memory_type=self._memory_type)
        self._message = RequestParams(mask=_REQUEST_FLAGS, flags=_SEND_REPLY_EAGER)
        self._force = RequestParams(mask=_REQUEST_FLAGS, flags=_CLOSE_FORCE)

    def map_memory(self, context: int, address: int, length: int) -> int:
        """Registers memory so that peers may write to it. Raises LinkError."""
        handle = c_void_p()
        params = MapParams(mask=_MAP_ADDRESS_LENGTH_TYPE, address=address, length=length, memory_type=self._memory_type)
        self._check(self._lib.ucp_mem_map(context, byref(params), byref(handle)), "register memory")
        return handle.value or 0

    def unmap_memory(self, context: int, handle: int) -> None:
        self._lib.ucp_mem_unmap(context, handle)

    def pack_key(self, context: int, handle: int) -> bytes:
        """The remote key of registered memory. Raises LinkError."""
        buffer, size = c_void_p(), c_size_t()
        self._check(self._lib.ucp_rkey_pack(context, handle, byref(buffer), byref(size)), "pack a remote key")
        key = ctypes.string_at(buffer.value or 0, size.value)
        self._lib.ucp_rkey_buffer_release(buffer)
        return key

    def listen(self, worker: int, address: bytes, ask: Callable[[int], None]) -> tuple[int, int]:
        """Listens only at `address` (a socket address); progress calls `ask(request)` for each client.

        Returns the listener and its port. Raises LinkError, also for an address in use. One listener per Ucp.
        """
        self._ask = OnConnectionRequest(lambda request, _: ask(request))  # UCX holds a bare pointer to it
        params = ListenerParams(mask=_LISTEN_AT_AND_ASK, address=SocketAddress(address, len(address)), ask=self._ask)
        handle = c_void_p()
        self._check(self._lib.ucp_listener_create(worker, byref(params), byref(handle)), "listen")
        attributes = ListenerAttributes(mask=_ADDRESS_LISTENED_AT)
        self._check(self._lib.ucp_listener_query(handle, byref(attributes)), "query the port")
        return handle.value or 0, int.from_bytes(attributes.address[2:4], "big")

    def stop_listening(self, listener: int) -> None:
        self._lib.ucp_listener_destroy(listener)

    def on_failure(self, act: Callable[[int], None]) -> None:
        """Sets the callback `act(endpoint)`, which progress calls when a connection breaks."""
        self._failure = OnFailure(lambda _, endpoint, __: act(endpoint))

    def connect(self, worker: int, address: bytes) -> int:
        """Creates an endpoint to the listener at this socket address; a missing listener is noticed later.

        Raises LinkError.
        """
        to = SocketAddress(address, len(address))
        return self._create(worker, EndpointParams(mask=_CLIENT, flags=_CLIENT_SERVER, address=to))

    def client(self, request: int) -> bytes:
        """The socket address of the requesting client. Raises LinkError."""
        attributes = RequestAttributes(mask=_CLIENT_ADDRESS)
        self._check(self._lib.ucp_conn_request_query(request, byref(attributes)), "query a client")
        return bytes(attributes.client)

    def accept(self, worker: int, request: int) -> int:
        """Creates an endpoint to the requesting client. Raises LinkError."""
        return self._create(worker, EndpointParams(mask=_SERVER, request=request))

    def _create(self, worker: int, params: EndpointParams) -> int:
        params.error_mode, params.failed = _REPORT_FAILURES, self._failure
        handle = c_void_p()
        self._check(self._lib.ucp_ep_create(worker, byref(params), byref(handle)), "connect")
        return handle.value or 0

    def unpack_key(self, endpoint: int, key: bytes) -> int:
        """Unpacks a peer's key for puts over a connected endpoint. Raises LinkError."""
        handle = c_void_p()
        self._check(self._lib.ucp_ep_rkey_unpack(endpoint, key, byref(handle)), "unpack a remote key")
        return handle.value or 0

    def destroy_key(self, key: int) -> None:
        self._lib.ucp_rkey_destroy(key)

    def put(self, endpoint: int, local: int, length: int, remote: int, key: int) -> int:
        """Starts a write; returns a request for `status`."""
        return self._lib.ucp_put_nbx(endpoint, local, length, remote, key, byref(self._put)) or 0

    def send(self, endpoint: int, message: bytes) -> int:
        """Starts to send; returns a request for `status`. The caller keeps `message` until it has ended."""
        ends = self._lib.ucp_am_send_nbx(endpoint, _MESSAGE_ID, None, 0, message, len(message), byref(self._message))
        return ends or 0

    def on_message(self, worker: int, take: Callable[[int, bytes], None]) -> None:
        """Sets the callback `take(endpoint, message)`, which progress calls for each message. Raises LinkError."""

        def receive(_: Any, __: Any, ___: int, data: int | None, length: int, params: Any) -> int:
            take(params.contents.reply_to or 0, ctypes.string_at(data or 0, length))
            return 0

        self._receive = OnMessage(receive)  # UCX holds a bare pointer to it
        params = HandlerParams(
            mask=_HANDLE_ID_FLAGS_CALLBACK, id=_MESSAGE_ID, flags=_WHOLE_MESSAGES, callback=self._receive
        )
        self._check(self._lib.ucp_worker_set_am_recv_handler(worker, byref(params)), "take messages")

    def flush(self, endpoint: int) -> int:
        """Starts waiting for all earlier puts to be in the peer's memory; returns a request for `status`."""
        return self._lib.ucp_ep_flush_nbx(endpoint, byref(self._plain)) or 0

    def close(self, endpoint: int) -> int:
        """Closes without the peer's consent; returns a request for `status`. The endpoint must not be used again."""
        return self._lib.ucp_ep_close_nbx(endpoint, byref(self._force)) or 0

    def status(self, request: int) -> int:
        """0 if it is done, IN_PROGRESS, or a negative error."""
        if request == 0:
            return 0
        if request >= _LAST_ERROR:
            return request - (1 << 64)
        return int(self._lib.ucp_request_check_status(request))

    def free(self, request: int) -> None:
        """Frees a request that has ended."""
        if 0 < request < _LAST_ERROR:
            self._lib.ucp_request_free(request)

    def _check(self, status: int, what: str) -> None:
        if status:
            raise LinkError(f"UCX could not {what}: status {status}")
