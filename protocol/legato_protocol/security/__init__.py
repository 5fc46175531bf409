"""Tokens and certificates of a service, and TLS ports."""
