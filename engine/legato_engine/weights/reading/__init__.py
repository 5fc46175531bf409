"""Weights read from files by several threads, into the host's memory or to a GPU."""
