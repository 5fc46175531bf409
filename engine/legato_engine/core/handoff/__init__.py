"""Sequences handed off between workers, and the transport and memory of their blocks."""
