"""Connections to other workers: who the peer is, and how messages are protected."""
