"""Leases: leader election, and claims of namespaces between releases."""
