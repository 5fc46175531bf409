"""libucp's structures, with only the fields that are used, and the types of its functions and callbacks."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p


class MapParams(ctypes.Structure):
    _fields_ = (
        ("mask", c_uint64),
        ("address", c_void_p),
        ("length", c_size_t),
        ("flags", c_uint32),
        ("protection", c_uint32),
        ("memory_type", c_int),
        ("rest", c_uint8 * 52),
    )


class RequestParams(ctypes.Structure):
    _fields_ = (
        ("mask", c_uint32),
        ("flags", c_uint32),
        ("request", c_void_p),
        ("callback", c_void_p),
        ("datatype", c_uint64),
        ("user_data", c_void_p),
        ("reply_buffer", c_void_p),
        ("memory_type", c_int),
        ("rest", c_uint8 * 116),
    )


class ReceiveParams(ctypes.Structure):
    _fields_ = (("attributes", c_uint64), ("reply_to", c_void_p))


OnMessage = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(ReceiveParams))


class HandlerParams(ctypes.Structure):
    _fields_ = (
        ("mask", c_uint64),
        ("id", ctypes.c_uint),
        ("flags", c_uint32),
        ("callback", OnMessage),
        ("rest", c_uint8 * 32),
    )


class SocketAddress(ctypes.Structure):
    _fields_ = (("address", c_char_p), ("length", c_uint32))


OnConnectionRequest = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
OnFailure = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int)


class ListenerParams(ctypes.Structure):
    _fields_ = (
        ("mask", c_uint64),
        ("address", SocketAddress),
        ("accept_handler", c_void_p * 2),
        ("ask", OnConnectionRequest),
        ("ask_argument", c_void_p),
    )


class ListenerAttributes(ctypes.Structure):
    _fields_ = (("mask", c_uint64), ("address", c_uint8 * 128))


class RequestAttributes(ctypes.Structure):
    _fields_ = (("mask", c_uint64), ("client", c_uint8 * 128), ("client_id", c_uint64))


class EndpointParams(ctypes.Structure):
    _fields_ = (
        ("mask", c_uint64),
        ("worker_address", c_void_p),
        ("error_mode", c_int),
        ("failed", OnFailure),
        ("failed_argument", c_void_p),
        ("user_data", c_void_p),
        ("flags", ctypes.c_uint),
        ("address", SocketAddress),
        ("request", c_void_p),
        ("name", c_char_p),
        ("local_address", SocketAddress),
    )


PROTOTYPES = {
    "ucp_mem_map": (c_int, c_void_p, POINTER(MapParams), POINTER(c_void_p)),
    "ucp_mem_unmap": (c_int, c_void_p, c_void_p),
    "ucp_rkey_pack": (c_int, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_size_t)),
    "ucp_rkey_buffer_release": (None, c_void_p),
    "ucp_listener_create": (c_int, c_void_p, POINTER(ListenerParams), POINTER(c_void_p)),
    "ucp_listener_query": (c_int, c_void_p, POINTER(ListenerAttributes)),
    "ucp_listener_destroy": (None, c_void_p),
    "ucp_conn_request_query": (c_int, c_void_p, POINTER(RequestAttributes)),
    "ucp_ep_create": (c_int, c_void_p, POINTER(EndpointParams), POINTER(c_void_p)),
    "ucp_ep_rkey_unpack": (c_int, c_void_p, c_char_p, POINTER(c_void_p)),
    "ucp_rkey_destroy": (None, c_void_p),
    "ucp_put_nbx": (c_void_p, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p, POINTER(RequestParams)),
    "ucp_am_send_nbx": (
        c_void_p,
        c_void_p,
        ctypes.c_uint,
        c_void_p,
        c_size_t,
        c_char_p,
        c_size_t,
        POINTER(RequestParams),
    ),
    "ucp_worker_set_am_recv_handler": (c_int, c_void_p, POINTER(HandlerParams)),
    "ucp_ep_flush_nbx": (c_void_p, c_void_p, POINTER(RequestParams)),
    "ucp_ep_close_nbx": (c_void_p, c_void_p, POINTER(RequestParams)),
    "ucp_request_check_status": (c_int, c_void_p),
    "ucp_request_free": (None, c_void_p),
}
