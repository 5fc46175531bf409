"""Reads of objects from watches instead of the API server."""
