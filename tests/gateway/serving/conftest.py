"""The application in which what all APIs share is tested."""

from scripted_gateway import anyio_backend, gateway, make

__all__ = ("anyio_backend", "gateway", "make")
