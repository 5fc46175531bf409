"""Grammars that output must match: gateways refuse invalid ones, workers compute masks from them.

Both must judge a grammar alike, so they share this package. Only `vocabulary` does I/O; nothing imports torch.
"""
