"""The link over UCX, and the only package that loads it. The rest of the engine uses only `open`."""

from legato_engine.transfer.ucx.link import UcxLink, open

__all__ = ["UcxLink", "open"]
