"""Identities of clients: API keys, and proxies that are trusted to name tenants."""
