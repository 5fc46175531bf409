"""Flags of every command, and the values in flags, manifests and headers."""
