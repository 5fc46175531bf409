"""Bookkeeping of the KV cache: owners of blocks, the prefix cache, and the layout of a block. No device code."""
