"""Grammars that output has to match: what the gateway refuses, and what a worker computes masks by.

Both must judge a grammar the same way, so they share this package. No I/O but for `vocabulary`, no torch.
"""
