"""The link over UCX, and the only package that loads it: `open` is all that the rest of the engine needs."""

from legato_engine.transfer.ucx.link import UcxLink, open

__all__ = ["UcxLink", "open"]
