"""Requests of this worker: their tokens, states, limits and block tables."""
