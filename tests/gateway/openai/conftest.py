"""The application of the API's tests."""

from scripted_gateway import anyio_backend, gateway, make

__all__ = ("anyio_backend", "gateway", "make")
