"""Admits, queues or refuses requests. Pure: no I/O."""
